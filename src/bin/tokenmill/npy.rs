//! The header of a NumPy file (format version 1.0) whose number of rows isn't known yet.
//!
//! Source: NumPy Enhancement Proposal 1, "A simple file format for NumPy arrays".

/// Bytes before the array; the header is padded to this.
pub const HEADER_BYTES: usize = 128;

/// Header of an int32 array of shape `[rows, columns]`.
pub fn header(rows: u64, columns: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [b' '; HEADER_BYTES];
    bytes[..8].copy_from_slice(b"\x93NUMPY\x01\x00");
    bytes[8..10].copy_from_slice(&(HEADER_BYTES as u16 - 10).to_le_bytes());
    let dict = format!("{{'descr': '<i4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    bytes[10..10 + dict.len()].copy_from_slice(dict.as_bytes());
    bytes[HEADER_BYTES - 1] = b'\n';
    bytes
}

/// Whether `bytes` is a header written here, of an array with that many columns.
pub fn has_columns(bytes: &[u8], columns: u64) -> bool {
    bytes.starts_with(b"\x93NUMPY\x01\x00")
        && std::str::from_utf8(&bytes[10..])
            .is_ok_and(|dict| dict.contains("'<i4'") && dict.contains(&format!(", {columns}), }}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Length field, padding and line end as the format asks; the largest numbers fit.
    #[test]
    fn header_is_padded() {
        let bytes = header(u64::MAX, 1 << 24);
        assert_eq!(u16::from_le_bytes([bytes[8], bytes[9]]), 118);
        assert_eq!(bytes[127], b'\n');
        assert!(has_columns(&bytes, 1 << 24) && !has_columns(&bytes, 2048));
    }
}
