//! What stands between two records: a line end, or the separator of a text shard.
//!
//! A separator *overlaps itself* if some proper beginning of it is also its end, as in `"\n\n"`: then where one is found depends on
//! where the search began (`"\n\n\n"` has it at 0 or at 1), and a shard can only be split front to back. One that doesn't overlap is
//! found at the same places from anywhere.

use memchr::memmem::Finder;

#[derive(Debug, Clone)]
pub(crate) struct Separator {
    finder: Finder<'static>,
    overlaps: bool,
}

impl Separator {
    /// `bytes` aren't empty.
    pub(crate) fn new(bytes: &[u8]) -> Separator {
        assert!(!bytes.is_empty(), "an empty separator separates nothing");
        let overlaps = (1..bytes.len()).any(|size| bytes[..size] == bytes[bytes.len() - size..]);
        Separator { finder: Finder::new(bytes).into_owned(), overlaps }
    }

    /// Size in bytes, at least 1.
    pub(crate) fn size(&self) -> usize {
        self.finder.needle().len()
    }

    pub(crate) fn overlaps(&self) -> bool {
        self.overlaps
    }

    /// Offset of the first separator in `bytes`.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<usize> {
        match *self.finder.needle() {
            [byte] => memchr::memchr(byte, bytes),
            _ => self.finder.find(bytes),
        }
    }

    /// Calls `each` with the start and end of every piece of `bytes`, the last one included; stops when it fails.
    pub(crate) fn split<E>(&self, bytes: &[u8], mut each: impl FnMut(usize, usize) -> Result<(), E>) -> Result<(), E> {
        let mut start = 0;
        if let [byte] = *self.finder.needle() {
            for end in memchr::memchr_iter(byte, bytes) {
                each(start, end)?;
                start = end + 1;
            }
        } else {
            for end in self.finder.find_iter(bytes) {
                each(start, end)?;
                start = end + self.size();
            }
        }
        each(start, bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_what_overlaps_itself() {
        for (separator, expected) in
            [("\n", false), ("\n\n", true), ("--", true), ("<sep>", false), ("aba", true), ("ab", false)]
        {
            assert_eq!(Separator::new(separator.as_bytes()).overlaps(), expected, "{separator:?}");
        }
    }

    #[test]
    fn splits_into_pieces() {
        let check = |separator: &str, bytes: &str, expected: &[&str]| {
            let mut pieces = Vec::new();
            Separator::new(separator.as_bytes())
                .split::<()>(bytes.as_bytes(), |start, end| {
                    pieces.push(&bytes[start..end]);
                    Ok(())
                })
                .expect("never fails");
            assert_eq!(pieces, expected);
        };
        check("\n", "a\n\nb", &["a", "", "b"]);
        check("\n", "", &[""]);
        check("\n\n", "a\n\n\nb\n\n", &["a", "\nb", ""]);
        check("<>", "<>a<>", &["", "a", ""]);
    }
}
