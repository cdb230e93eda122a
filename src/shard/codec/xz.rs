//! xz: streams one after the other, padding of zeros between them. The dictionary may be 128 MiB; `xz -9` takes 64.

use liblzma::stream::{Action, Status, Stream};

use super::{Codec, Decode, Input, corrupt};
use crate::error::{Error, ErrorKind, Result};

const MEMORY_MAX: u64 = 192 << 20;

pub(crate) struct Xz {
    input: Input,
    stream: Stream,
    ended: bool,
    /// The last call made no progress; liblzma may do so once, at the border of two streams.
    stalled: bool,
    /// What follows the bytes handed out last.
    failed: Option<Error>,
}

impl Xz {
    pub(crate) fn new(input: Input) -> Result<Xz> {
        let stream = Stream::new_stream_decoder(MEMORY_MAX, liblzma::stream::CONCATENATED)
            .map_err(|error| Error::new(ErrorKind::Limit, "xz: no memory for a decoder").because(error))?;
        Ok(Xz { input, stream, ended: false, stalled: false, failed: None })
    }
}

impl Decode for Xz {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        while !self.ended {
            let before = (self.stream.total_in(), self.stream.total_out());
            let offset = self.input.position();
            let size = self.input.object.size();
            let bytes = self.input.fill()?;
            let at_end = bytes.is_empty();
            let status = self.stream.process(bytes, out, if at_end { Action::Finish } else { Action::Run });
            let consumed = (self.stream.total_in() - before.0) as usize;
            let count = (self.stream.total_out() - before.1) as usize;
            let failed = |error| match error {
                liblzma::stream::Error::MemLimit => {
                    let needed = "xz: found a dictionary that needs more memory";
                    Error::new(ErrorKind::Limit, format!("{needed}, expected at most {MEMORY_MAX} bytes"))
                }
                _ => corrupt(Codec::Xz, format!("damaged data near offset {offset}"), "a block, index or check")
                    .because(error),
            };
            let status = match status {
                Ok(status) => status,
                Err(error) if count == 0 => return Err(failed(error)),
                Err(error) => {
                    self.failed = Some(failed(error));
                    return Ok(count);
                }
            };
            self.input.consume(consumed);
            let stalled = consumed == 0 && count == 0;
            if status == Status::StreamEnd {
                self.ended = true;
            } else if stalled && self.stalled && !at_end {
                return Err(corrupt(Codec::Xz, format!("no progress at offset {offset}"), "a block"));
            } else if consumed == 0 && count == 0 && at_end {
                return Err(corrupt(
                    Codec::Xz,
                    format!("the end of the object at offset {size}"),
                    "the rest of a stream",
                ));
            }
            self.stalled = stalled;
            if count > 0 {
                return Ok(count);
            }
        }
        Ok(0)
    }
}
