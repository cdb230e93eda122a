//! gzip: members one after the other, each with a CRC and a size (RFC 1952). Zero bytes after the last one are padding,
//! as the gzip tool has it; anything else there is an error.

use flate2::{Decompress, FlushDecompress, Status};

use super::{Codec, Decode, Input, corrupt};
use crate::error::{Error, Result};

pub(crate) struct Gzip {
    input: Input,
    inflate: Decompress,
    crc: crc32fast::Hasher,
    /// Bytes of the member so far.
    size: u64,
    at: At,
    /// What follows the bytes handed out last.
    failed: Option<Error>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before a member; the first one has to be there.
    Header {
        first: bool,
    },
    Body,
    Trailer,
}

impl Gzip {
    pub(crate) fn new(input: Input) -> Gzip {
        Gzip {
            input,
            inflate: Decompress::new(false),
            crc: crc32fast::Hasher::new(),
            size: 0,
            at: At::Header { first: true },
            failed: None,
        }
    }

    /// Steps over a member's header; false at the end of the object.
    fn header(&mut self, first: bool) -> Result<bool> {
        if !first {
            // Padding.
            loop {
                let bytes = self.input.fill()?;
                let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
                let more = zeros > 0 && zeros == bytes.len();
                let at_end = bytes.is_empty();
                self.input.consume(zeros);
                if at_end {
                    return Ok(false);
                }
                if !more {
                    break;
                }
            }
        }
        let offset = self.input.position();
        let fixed = self.take(10)?;
        if fixed[..2] != [0x1f, 0x8b] {
            let found = format!("the bytes {:02x} {:02x} at offset {offset} after the last member", fixed[0], fixed[1]);
            return Err(corrupt(Codec::Gzip, found, "the end, or a member (1f 8b)"));
        }
        if fixed[2] != 8 {
            return Err(corrupt(Codec::Gzip, format!("compression method {}", fixed[2]), "8 (deflate)"));
        }
        let flags = fixed[3];
        if flags & 0xe0 != 0 {
            return Err(corrupt(Codec::Gzip, format!("reserved flags {flags:#04x}"), "0"));
        }
        if flags & 4 != 0 {
            let size = self.take(2)?;
            let size = u64::from(u16::from_le_bytes([size[0], size[1]]));
            if self.input.skip(size) < size {
                return Err(self.truncated());
            }
        }
        // Name and comment, each ended by a zero byte.
        for _ in 0..u32::from(flags & 8 != 0) + u32::from(flags & 16 != 0) {
            loop {
                let bytes = self.input.fill()?;
                if bytes.is_empty() {
                    return Err(self.truncated());
                }
                let count = bytes.len();
                match memchr::memchr(0, bytes) {
                    Some(end) => {
                        self.input.consume(end + 1);
                        break;
                    }
                    None => self.input.consume(count),
                }
            }
        }
        if flags & 2 != 0 {
            self.take(2)?;
        }
        Ok(true)
    }

    /// The next `count` bytes (at most 10).
    fn take(&mut self, count: usize) -> Result<[u8; 10]> {
        let mut taken = [0; 10];
        let bytes = self.input.peek(count)?;
        if bytes.len() < count {
            return Err(self.truncated());
        }
        taken[..count].copy_from_slice(&bytes[..count]);
        self.input.consume(count);
        Ok(taken)
    }

    fn truncated(&self) -> Error {
        let size = self.input.object.size();
        corrupt(Codec::Gzip, format!("the end of the object at offset {size}"), "the rest of a member")
    }
}

impl Decode for Gzip {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        loop {
            match self.at {
                At::Header { first } => {
                    if !self.header(first)? {
                        return Ok(0);
                    }
                    self.inflate.reset(false);
                    self.crc.reset();
                    self.size = 0;
                    self.at = At::Body;
                }
                At::Body => {
                    let before = (self.inflate.total_in(), self.inflate.total_out());
                    let bytes = self.input.fill()?;
                    let at_end = bytes.is_empty();
                    let status = self.inflate.decompress(bytes, out, FlushDecompress::None);
                    let consumed = (self.inflate.total_in() - before.0) as usize;
                    let count = (self.inflate.total_out() - before.1) as usize;
                    let status = match status {
                        Ok(status) => status,
                        Err(error) => {
                            let found = format!("damaged data near offset {}", self.input.position());
                            let error = corrupt(Codec::Gzip, found, "a deflate block").because(error);
                            if count == 0 {
                                return Err(error);
                            }
                            self.failed = Some(error);
                            return Ok(count);
                        }
                    };
                    self.input.consume(consumed);
                    self.crc.update(&out[..count]);
                    self.size += count as u64;
                    if status == Status::StreamEnd {
                        self.at = At::Trailer;
                    } else if consumed == 0 && count == 0 {
                        if at_end {
                            return Err(self.truncated());
                        }
                        let offset = self.input.position();
                        return Err(corrupt(Codec::Gzip, format!("no progress at offset {offset}"), "a deflate block"));
                    }
                    if count > 0 {
                        return Ok(count);
                    }
                }
                At::Trailer => {
                    let trailer = self.take(8)?;
                    let word = |at: usize| {
                        u32::from_le_bytes([trailer[at], trailer[at + 1], trailer[at + 2], trailer[at + 3]])
                    };
                    let crc = self.crc.clone().finalize();
                    if crc != word(0) {
                        return Err(corrupt(Codec::Gzip, format!("CRC {crc:08x}"), format!("{:08x}", word(0))));
                    }
                    if self.size as u32 != word(4) {
                        let found = format!("{} bytes in a member", self.size);
                        return Err(corrupt(Codec::Gzip, found, format!("{} (modulo 2^32)", word(4))));
                    }
                    self.at = At::Header { first: false };
                }
            }
        }
    }
}
