//! lz4: frames one after the other, skippable frames between them.
//!
//! The decoder of `lz4_flex` takes a frame that ends in the middle for a frame that ends, so what it reads is watched: a read
//! that meets the end of the object is a truncated frame, since between two frames the end is looked for here.

use std::io;

use lz4_flex::frame::FrameDecoder;

use super::{Codec, Decode, Input, corrupt, is_skippable};
use crate::error::{Error, Result};

pub(crate) struct Lz4 {
    decoder: FrameDecoder<Watched>,
    in_frame: bool,
}

struct Watched {
    input: Input,
    met_end: bool,
    failed: Option<Error>,
}

impl io::Read for Watched {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self.input.fill() {
            Ok(bytes) => {
                let count = bytes.len().min(out.len());
                out[..count].copy_from_slice(&bytes[..count]);
                self.input.consume(count);
                self.met_end |= count == 0 && !out.is_empty();
                Ok(count)
            }
            Err(error) => {
                self.failed = Some(error.clone());
                Err(io::Error::other(error))
            }
        }
    }
}

impl Lz4 {
    pub(crate) fn new(input: Input) -> Lz4 {
        Lz4 { decoder: FrameDecoder::new(Watched { input, met_end: false, failed: None }), in_frame: false }
    }

    /// Goes to the next frame; false at the end of the object.
    fn next_frame(&mut self) -> Result<bool> {
        let input = &mut self.decoder.get_mut().input;
        loop {
            let offset = input.position();
            let bytes = input.peek(8)?;
            if bytes.is_empty() {
                return Ok(false);
            }
            match *bytes {
                [0x04, 0x22, 0x4d, 0x18, ..] => return Ok(true),
                [a, b, c, d, e, f, g, h, ..] if is_skippable(u32::from_le_bytes([a, b, c, d])) => {
                    let size = 8 + u64::from(u32::from_le_bytes([e, f, g, h]));
                    if input.skip(size) < size {
                        return Err(truncated(input));
                    }
                }
                _ => {
                    let found = format!("the byte {:02x} at offset {offset} after the last frame", bytes[0]);
                    return Err(corrupt(Codec::Lz4, found, "the end, or a frame (04 22 4d 18)"));
                }
            }
        }
    }
}

fn truncated(input: &Input) -> Error {
    let size = input.object.size();
    corrupt(Codec::Lz4, format!("the end of the object at offset {size}"), "the rest of a frame")
}

impl Decode for Lz4 {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        loop {
            if !self.in_frame && !self.next_frame()? {
                return Ok(0);
            }
            self.in_frame = true;
            let result = io::Read::read(&mut self.decoder, out);
            let watched = self.decoder.get_mut();
            if let Some(error) = watched.failed.take() {
                return Err(error);
            }
            match result {
                Ok(0) if watched.met_end => return Err(truncated(&watched.input)),
                Ok(0) => self.in_frame = false,
                Ok(count) => return Ok(count),
                Err(_) if watched.met_end => return Err(truncated(&watched.input)),
                Err(error) => {
                    let offset = watched.input.position();
                    let found = format!("damaged data near offset {offset}");
                    return Err(corrupt(Codec::Lz4, found, "a block or checksum").because(error));
                }
            }
        }
    }
}
