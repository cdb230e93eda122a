//! Damage that happened on the way: a second look at a remote object before its decoder's word is taken.
//!
//! Comes in: a decoder, and a way to make it anew over bytes that are read until two reads agree. Goes out: the same bytes as from
//! the decoder alone. Holds: where the decoder reports damage, everything is decoded once more, up to there; if what had been handed out
//! comes out the same and the damage is gone, reading goes on; if the damage is there again, it is the object's own; if what had
//! been handed out was other, that can't be mended here, and the error says so and is never passed over. Does not know: networks.
//!
//! Checksums of gzip, xz and zstd come behind what they are of, and a decoder that has lost its way may take some KB to notice. So
//! bytes are handed out only when they were checked, or the decoder is [`HELD`] bytes ahead of them: damage in frames or streams up
//! to that size is always mended, and in longer ones mostly.

use super::Decode;
use crate::error::{Error, ErrorKind, Result};

type Make = Box<dyn FnOnce() -> Result<Box<dyn Decode>> + Send>;

/// Uncompressed bytes that the decoder runs ahead.
pub(crate) const HELD: usize = 2 << 20;
/// Read from the decoder at once.
const STEP: usize = 128 << 10;

pub(crate) struct Again {
    decoder: Box<dyn Decode>,
    /// Makes the second decoder; gone when it was made.
    fresh: Option<Make>,
    /// Decoded, and not handed out yet: `held[start..]`.
    held: Vec<u8>,
    start: usize,
    /// What was handed out: bytes, and their CRC.
    handed: u64,
    crc: crc32fast::Hasher,
    /// What comes behind `held`, when that is known.
    end: Option<Result<()>>,
}

impl Again {
    pub(crate) fn new(decoder: Box<dyn Decode>, fresh: Make) -> Again {
        let crc = crc32fast::Hasher::new();
        Again { decoder, fresh: Some(fresh), held: Vec::new(), start: 0, handed: 0, crc, end: None }
    }

    /// How many of the bytes held may be handed out.
    fn ready(&self) -> usize {
        let there = self.held.len() - self.start;
        if self.end.is_some() {
            return there;
        }
        let checked = self.decoder.checked().saturating_sub(self.handed).min(there as u64) as usize;
        checked.max(there.saturating_sub(HELD))
    }

    /// Decodes ahead; damage puts the second decoder in the first one's place.
    fn fill(&mut self) -> Result<()> {
        loop {
            if self.end.is_some() || self.ready() > 0 {
                return Ok(());
            }
            if self.start >= HELD {
                self.held.drain(..self.start);
                self.start = 0;
            }
            let filled = self.held.len();
            self.held.resize(filled + STEP, 0);
            let result = self.decoder.read(&mut self.held[filled..]);
            self.held.truncate(filled + *result.as_ref().unwrap_or(&0));
            match result {
                Ok(0) => self.end = Some(Ok(())),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let fresh = self.fresh.take().expect("without it nothing is held");
                    tracing::warn!("{error}; the object is read again, to see whether that happened on the way");
                    (self.held, self.start) = (Vec::new(), 0);
                    return self.look_again(fresh);
                }
                Err(error) => self.end = Some(Err(error)),
            }
        }
    }

    /// Puts a decoder that has handed out the same in place of the one that failed.
    fn look_again(&mut self, fresh: Make) -> Result<()> {
        let mut decoder = fresh()?;
        let mut crc = crc32fast::Hasher::new();
        let mut buffer = vec![0; STEP];
        let mut left = self.handed;
        while left > 0 {
            let most = left.min(buffer.len() as u64) as usize;
            match decoder.read(&mut buffer[..most]) {
                Ok(0) => return Err(self.was_damaged()),
                Ok(count) => {
                    crc.update(&buffer[..count]);
                    left -= count as u64;
                }
                Err(error) if error.kind() == ErrorKind::Corrupt => return Err(self.was_damaged()),
                Err(error) => return Err(error),
            }
        }
        if crc.finalize() != self.crc.clone().finalize() {
            return Err(self.was_damaged());
        }
        self.decoder = decoder;
        Ok(())
    }

    fn was_damaged(&self) -> Error {
        let detail = format!(
            "found that bytes were damaged on the way from the server: read again, the first {} uncompressed bytes from \
             where reading began are others; documents in them may have been delivered, so go on from a checkpoint before them",
            self.handed
        );
        Error::new(ErrorKind::Read, detail)
    }
}

impl Decode for Again {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if self.fresh.is_some() {
            if let Err(error) = self.fill() {
                self.end = Some(Err(error.clone()));
                return Err(error);
            }
        } else if let Some(Err(error)) = &self.end {
            return Err(error.clone());
        }
        if self.fresh.is_none() {
            return self.decoder.read(out);
        }
        let ready = self.ready();
        if ready == 0 {
            return self.end.clone().unwrap_or(Ok(())).map(|()| 0);
        }
        let count = ready.min(out.len());
        out[..count].copy_from_slice(&self.held[self.start..self.start + count]);
        self.start += count;
        self.handed += count as u64;
        self.crc.update(&out[..count]);
        Ok(count)
    }

    fn recover(&mut self) -> Option<u64> {
        self.decoder.recover()
    }

    fn mark(&self) -> Option<u64> {
        self.decoder.mark()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives the text, and then the end or damage.
    struct Fake {
        text: &'static [u8],
        damaged: bool,
    }

    impl Decode for Fake {
        fn read(&mut self, out: &mut [u8]) -> Result<usize> {
            if self.text.is_empty() && self.damaged {
                return Err(Error::new(ErrorKind::Corrupt, "damaged"));
            }
            let count = self.text.len().min(out.len()).min(3000);
            out[..count].copy_from_slice(&self.text[..count]);
            self.text = &self.text[count..];
            Ok(count)
        }
    }

    /// First and second reading: what comes out, and the error at the end.
    #[test]
    fn second_looks() {
        let check =
            |first: (&'static [u8], bool), second: (&'static [u8], bool), out: &[u8], kind: Option<ErrorKind>| {
                let fake = |(text, damaged): (&'static [u8], bool)| Box::new(Fake { text, damaged });
                let mut again = Again::new(fake(first), Box::new(move || Ok(fake(second))));
                let (mut found, mut buffer) = (Vec::new(), [0; 5000]);
                let error = loop {
                    match again.read(&mut buffer) {
                        Ok(0) => break None,
                        Ok(count) => found.extend_from_slice(&buffer[..count]),
                        Err(error) => break Some(error.kind()),
                    }
                };
                assert!(found == out, "{} and {} bytes", found.len(), out.len());
                assert_eq!(error, kind);
            };
        check((b"abcdefgh", false), (b"", true), b"abcdefgh", None);
        check((b"abcd", true), (b"abcdefgh", false), b"abcdefgh", None);
        check((b"abcd", true), (b"abcd", true), b"abcd", Some(ErrorKind::Corrupt));
        // Nothing of it was handed out yet.
        check((b"abXd", true), (b"abcdefgh", false), b"abcdefgh", None);
        check((b"abcd", true), (b"ab", true), b"ab", Some(ErrorKind::Corrupt));
        // Some of it was.
        let long: &'static [u8] = (0..2 * HELD).map(|i| (i % 251) as u8).collect::<Vec<u8>>().leak();
        let mut other = long.to_vec();
        other[7] ^= 1;
        let other: &'static [u8] = other.leak();
        check((long, true), (long, false), long, None);
        check((&long[..HELD], true), (long, false), long, None);
        check((&other[..HELD], true), (long, false), long, None);
        let handed = long.len() - HELD;
        let near = |found: usize| found.abs_diff(handed) < 10_000;
        let mut again = Again::new(
            Box::new(Fake { text: other, damaged: true }),
            Box::new(move || Ok(Box::new(Fake { text: long, damaged: false }))),
        );
        let (mut found, mut buffer) = (0, [0; 5000]);
        let error = loop {
            match again.read(&mut buffer) {
                Ok(count) => found += count,
                Err(error) => break error,
            }
        };
        assert!(error.kind() == ErrorKind::Read && near(found), "{found} of {handed}: {error}");
        assert_eq!(again.read(&mut buffer).expect_err("it stays").kind(), ErrorKind::Read);
    }
}
