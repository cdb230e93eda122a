//! The serial driver: one thread, one document after another, nothing ahead. Short on purpose: it is the reference that
//! the parallel driver is held equal to, and what `inspect` uses.

use super::reader::{Context, LaneReader, LoadedWindow};
use super::{Documents, lost};
use crate::document::EncodedDocuments;
use crate::error::Result;

pub(super) struct Serial {
    context: std::sync::Arc<Context>,
    strands: Vec<Strand>,
}

struct Strand {
    reader: LaneReader,
    /// The window being delivered, and its next document.
    window: Option<(LoadedWindow, usize)>,
}

impl Serial {
    pub fn new(context: std::sync::Arc<Context>, readers: Vec<LaneReader>) -> Self {
        let strands = readers.into_iter().map(|reader| Strand { reader, window: None }).collect();
        Serial { context, strands }
    }
}

impl Documents for Serial {
    fn next(&mut self, strand: usize, spent: Option<EncodedDocuments>) -> Result<Option<EncodedDocuments>> {
        if let Some(spent) = spent {
            self.context.buffers.spent_piece(spent);
        }
        let strand = &mut self.strands[strand];
        loop {
            if let Some((window, next)) = &mut strand.window
                && *next < window.order.len()
            {
                let encoded = window.encode(&self.context, *next..*next + 1, &mut String::new());
                *next += 1;
                return Ok(Some(encoded));
            }
            match strand.reader.next(&self.context, None)? {
                Some(window) => {
                    let skip = window.skip;
                    strand.window = Some((window, skip));
                }
                None => return Ok(lost(strand.reader.take_lost())),
            }
        }
    }
}
