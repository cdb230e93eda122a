//! bzip2: streams one after the other, each with a checksum a block and one for all.

use bzip2::{Decompress, Status};

use super::{Codec, Decode, Input, corrupt};
use crate::error::{Error, Result};

pub(crate) struct Bzip2 {
    input: Input,
    /// The stream being read; `None` between two.
    stream: Option<Decompress>,
    /// What follows the bytes handed out last.
    failed: Option<Error>,
}

impl Bzip2 {
    pub(crate) fn new(input: Input) -> Bzip2 {
        Bzip2 { input, stream: None, failed: None }
    }
}

impl Decode for Bzip2 {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        loop {
            let offset = self.input.position();
            let size = self.input.object.size();
            let bytes = self.input.fill()?;
            let at_end = bytes.is_empty();
            let between = self.stream.is_none();
            if between && at_end {
                return Ok(0);
            }
            let stream = self.stream.get_or_insert_with(|| Decompress::new(false));
            let before = (stream.total_in(), stream.total_out());
            let status = stream.decompress(bytes, out);
            let consumed = (stream.total_in() - before.0) as usize;
            let count = (stream.total_out() - before.1) as usize;
            let status = match status {
                Ok(status) => status,
                Err(error) => {
                    let expected = if between { "the end, or a stream (BZh)" } else { "a block or checksum" };
                    let error =
                        corrupt(Codec::Bzip2, format!("damaged data near offset {offset}"), expected).because(error);
                    if count == 0 {
                        return Err(error);
                    }
                    self.failed = Some(error);
                    return Ok(count);
                }
            };
            self.input.consume(consumed);
            if status == Status::StreamEnd {
                self.stream = None;
            } else if consumed == 0 && count == 0 {
                let (found, expected) = if at_end {
                    (format!("the end of the object at offset {size}"), "the rest of a stream")
                } else {
                    (format!("no progress at offset {offset}"), "a block")
                };
                return Err(corrupt(Codec::Bzip2, found, expected));
            }
            if count > 0 {
                return Ok(count);
            }
        }
    }
}
