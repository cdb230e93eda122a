//! Strings of JSON without their escapes, 64 bytes at once.
//!
//! Comes in: a line, and where in it a string goes on. Goes out: the bytes that the string stands for. Holds: what is written is what
//! one look at a byte after the other would write; the first byte that needs more than a look, such as the closing quote, a control
//! character or an escape with digits, is left to the caller. Does not know: the rest of JSON, UTF-8.
//!
//! Text has an escape every 30 to 50 bytes, and a processor can't foresee where: going from one to the next costs more in
//! jumps that were guessed wrong than in work. So no jump here depends on where escapes are: their backslashes are told from escaped ones by
//! arithmetic on a mask (Langdale and Lemire, "Parsing gigabytes of JSON per second", VLDB Journal 28, 2019, section 3.1.1), the bytes after them are
//! looked up, and the backslashes squeezed out.

/// Bytes looked at together.
pub(super) const BLOCK: usize = 64;

/// What a backslash and this byte stand for; 0 if they are no such escape.
pub(super) static STANDS_FOR: [u8; 256] = {
    let mut table = [0; 256];
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table[b'/' as usize] = b'/';
    table[b'b' as usize] = 0x8;
    table[b'f' as usize] = 0xc;
    table[b'n' as usize] = b'\n';
    table[b'r' as usize] = b'\r';
    table[b't' as usize] = b'\t';
    table
};

/// True if [`unescape`] may be called here.
#[inline]
pub(super) fn available() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        has!("avx512f") && has!("avx512bw") && has!("avx512vbmi") && has!("avx512vbmi2") && has!("popcnt")
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Writes what `bytes[at..]`, the inside of a string, stands for to `out[end..]`, a block at a time. Stops in front of the first byte that
/// isn't plain nor part of an escape of two characters, or where less than a block is left. Returns where it stopped in both. At most
/// [`BLOCK`] bytes behind that are overwritten.
///
/// # Panics
/// When `out` is too short: it needs as many bytes as are left of `bytes`, and [`BLOCK`] more. Where it isn't [`available`].
pub(super) fn unescape(bytes: &[u8], at: usize, out: &mut [u8], end: usize) -> (usize, usize) {
    assert!(available(), "only called where the processor can");
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the features the function is compiled for were found.
    return unsafe { unescape_avx512(bytes, at, out, end) };
    #[cfg(not(target_arch = "x86_64"))]
    (at, end)
}

/// Bits at even places.
#[cfg(target_arch = "x86_64")]
const EVEN: u64 = 0x5555_5555_5555_5555;

/// Of the backslashes in a block those that begin an escape, if its first byte isn't an escaped one: in each run of backslashes
/// the first, the third, and so on.
#[cfg(target_arch = "x86_64")]
fn escapes_of(backslashes: u64) -> u64 {
    let run_starts = backslashes & !(backslashes << 1);
    // Adding a bit at the start of a run carries through it and clears it; other runs stay.
    let even_runs = backslashes & !backslashes.wrapping_add(run_starts & EVEN);
    let odd_runs = backslashes & !even_runs;
    (even_runs & EVEN) | (odd_runs & !EVEN)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
fn unescape_avx512(bytes: &[u8], mut at: usize, out: &mut [u8], mut end: usize) -> (usize, usize) {
    use std::arch::x86_64::{
        __m512i, _mm512_cmpeq_epi8_mask, _mm512_cmplt_epu8_mask, _mm512_loadu_si512, _mm512_mask_blend_epi8,
        _mm512_maskz_compress_epi8, _mm512_movepi8_mask, _mm512_permutex2var_epi8, _mm512_set1_epi8,
        _mm512_storeu_si512, _mm512_testn_epi8_mask,
    };
    // SAFETY: reads the block's 64 bytes; no alignment is asked for.
    let load = |block: &[u8; BLOCK]| unsafe { _mm512_loadu_si512(block.as_ptr().cast::<__m512i>()) };
    // SAFETY: writes the block's 64 bytes; no alignment is asked for.
    let store =
        |block: &mut [u8; BLOCK], value| unsafe { _mm512_storeu_si512(block.as_mut_ptr().cast::<__m512i>(), value) };
    let (tables, _) = STANDS_FOR.as_chunks::<BLOCK>();
    let (low, high) = (load(&tables[0]), load(&tables[1]));
    let (backslash, quote, space) =
        (_mm512_set1_epi8(b'\\' as i8), _mm512_set1_epi8(b'"' as i8), _mm512_set1_epi8(0x20));
    while let Some(block) = bytes[at..].first_chunk() {
        let place = out[end..].first_chunk_mut().expect("there is room for a block more than is left");
        let block = load(block);
        let backslashes = _mm512_cmpeq_epi8_mask(block, backslash);
        let quotes = _mm512_cmpeq_epi8_mask(block, quote);
        let controls = _mm512_cmplt_epu8_mask(block, space);
        if backslashes | quotes | controls == 0 {
            store(place, block);
            (at, end) = (at + BLOCK, end + BLOCK);
            continue;
        }
        let escapes = escapes_of(backslashes);
        let escaped = escapes << 1;
        // Of the index seven bits count; what isn't ASCII is no escape.
        let meant = _mm512_permutex2var_epi8(low, block, high);
        let others = (_mm512_testn_epi8_mask(meant, meant) | _mm512_movepi8_mask(block)) & escaped;
        // The quote that ends the string, a control character, the backslash of another escape, that of an escape that goes on behind the block.
        let stops = (quotes & !escaped) | controls | (others >> 1) | (escapes & 1 << 63);
        let count = stops.trailing_zeros();
        let before = 1_u64.checked_shl(count).map_or(u64::MAX, |bit| bit - 1);
        let kept = before & !escapes;
        store(place, _mm512_maskz_compress_epi8(kept, _mm512_mask_blend_epi8(escaped, block, meant)));
        (at, end) = (at + count as usize, end + kept.count_ones() as usize);
        // An escape that is cut in two is whole in the next block.
        let cut = count == 63 && escapes >> 63 == 1;
        if count < 64 && !cut {
            break;
        }
    }
    (at, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One byte after the other, to the end.
    fn oracle(bytes: &[u8]) -> (usize, Vec<u8>) {
        let (mut at, mut out) = (0, Vec::new());
        while let Some(&byte) = bytes.get(at) {
            let after = bytes.get(at + 1).map_or(0, |&after| STANDS_FOR[usize::from(after)]);
            match byte {
                b'"' | 0..0x20 => break,
                b'\\' if after == 0 => break,
                b'\\' => out.push(after),
                byte => out.push(byte),
            }
            at += if byte == b'\\' { 2 } else { 1 };
        }
        (at, out)
    }

    /// Every mix of plain characters, backslashes in runs, what may follow them and what ends a string gives what one look at a byte after the
    /// other gives.
    #[test]
    fn agrees_with_one_byte_after_the_other() {
        if !available() {
            return;
        }
        let mut random = 1_u64;
        let mut next = |count: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % count
        };
        let mut stops = [0; 256];
        for round in 0..40_000 {
            // From text with few escapes to nothing but backslashes and what is special.
            let (plain, some) = (next(64) + 1, 1 + round % 16);
            let bytes: Vec<u8> = (0..64 + next(400))
                .map(|_| match next(plain) {
                    0 => b"\\\\\\\\\\\\\\\\nt\"/u\x1f\xc3x"[next(some)],
                    _ => b"abc nbt/u\xe2"[next(10)],
                })
                .collect();
            let mut out = vec![0; bytes.len() + BLOCK];
            let (at, end) = unescape(&bytes, 0, &mut out, 0);
            let (expected_at, expected) = oracle(&bytes);
            assert_eq!(out[..end], expected[..end], "{bytes:?}");
            if bytes.len() - at >= BLOCK {
                assert_eq!((at, end), (expected_at, expected.len()), "{bytes:?}");
                stops[usize::from(bytes[at])] += 1;
            } else {
                // What is left is what the rest of the string stands for: no escape was cut.
                assert_eq!(oracle(&bytes[at..]).1, expected[end..], "{bytes:?}");
            }
        }
        assert!([b'"', b'\\', 0x1f].iter().all(|&byte| stops[usize::from(byte)] > 100), "each kind of stop was met");
    }
}
