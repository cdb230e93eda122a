//! Damage that happened on the way: a second look at a remote object before its decoder's word is taken.
//!
//! Comes in: a decoder, and a way to make it anew over bytes that are read until two reads agree. Goes out: the same bytes as from
//! the decoder alone. Holds: where the decoder reports damage, everything is decoded once more, up to there; if what had been handed out
//! comes out the same and the damage is gone, reading goes on; if the damage is there again, it is the object's own; if what had
//! been handed out was other, that can't be mended here, and the error says so and is never passed over. Does not know: networks.
//!
//! Checksums of gzip, xz and zstd come behind what they are of, so damage may be found only after some of it was handed out.

use super::Decode;
use crate::error::{Error, ErrorKind, Result};

type Make = Box<dyn FnOnce() -> Result<Box<dyn Decode>> + Send>;

pub(crate) struct Again {
    decoder: Box<dyn Decode>,
    /// Makes the second decoder; gone when it was made.
    fresh: Option<Make>,
    /// What was handed out: bytes, and their CRC.
    handed: u64,
    crc: crc32fast::Hasher,
}

impl Again {
    pub(crate) fn new(decoder: Box<dyn Decode>, fresh: Make) -> Again {
        Again { decoder, fresh: Some(fresh), handed: 0, crc: crc32fast::Hasher::new() }
    }

    /// Puts a decoder that has handed out the same in place of the one that failed.
    fn look_again(&mut self, fresh: Make) -> Result<()> {
        let mut decoder = fresh()?;
        let mut crc = crc32fast::Hasher::new();
        let mut buffer = vec![0; 64 << 10];
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
        let count = match self.decoder.read(out) {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let Some(fresh) = self.fresh.take() else { return Err(error) };
                tracing::warn!("{error}; the object is read again, to see whether that happened on the way");
                self.look_again(fresh)?;
                self.decoder.read(out)?
            }
            count => count?,
        };
        if self.fresh.is_some() {
            self.handed += count as u64;
            self.crc.update(&out[..count]);
        }
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
            let count = self.text.len().min(out.len()).min(3);
            out[..count].copy_from_slice(&self.text[..count]);
            self.text = &self.text[count..];
            Ok(count)
        }
    }

    /// First and second reading: what comes out, and the error at the end.
    #[test]
    fn second_looks() {
        let check = |first: (&'static str, bool), second: (&'static str, bool), out: &str, kind: Option<ErrorKind>| {
            let fake = |(text, damaged): (&'static str, bool)| Box::new(Fake { text: text.as_bytes(), damaged });
            let mut again = Again::new(fake(first), Box::new(move || Ok(fake(second))));
            let (mut found, mut buffer) = (Vec::new(), [0; 64]);
            let error = loop {
                match again.read(&mut buffer) {
                    Ok(0) => break None,
                    Ok(count) => found.extend_from_slice(&buffer[..count]),
                    Err(error) => break Some(error.kind()),
                }
            };
            assert_eq!((String::from_utf8_lossy(&found).as_ref(), error), (out, kind), "{first:?} {second:?}");
        };
        check(("abcdefgh", false), ("", true), "abcdefgh", None);
        check(("abcd", true), ("abcdefgh", false), "abcdefgh", None);
        check(("abcd", true), ("abcd", true), "abcd", Some(ErrorKind::Corrupt));
        check(("abXd", true), ("abcdefgh", false), "abXd", Some(ErrorKind::Read));
        check(("abcd", true), ("ab", true), "abcd", Some(ErrorKind::Read));
        check(("abcd", true), ("abcdef", true), "abcdef", Some(ErrorKind::Corrupt));
    }
}
