//! The output of a run: a file, or an object that is put as a whole whenever the file would be synced.
//!
//! Holds: an object is the output up to the last checkpoint or the end, never a part of a block. Why not append: objects can't be
//! appended to. So each checkpoint puts all of it again, in parts; output that is large and checkpointed often is better kept in
//! a file.
//!
//! A run that goes on from its checkpoint continues its output. One that was begun at a resume, because the world size is another
//! now or the file a new one, begins somewhere in the run: where, is kept beside it, in `PATH.begin.json`. Without it nobody could say
//! which row of a NumPy array the checkpoint stands at.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokenmill::block::Block;
use tokenmill::error::{Error, ErrorKind, Result};
use tokenmill::storage::scheme;

use crate::args::OutFormat;
use crate::places::Places;
use crate::sink::Sink;

pub struct Output<'a> {
    sink: Option<Sink>,
    upload: Option<Upload<'a>>,
}

struct Upload<'a> {
    places: &'a Places<'a>,
    location: String,
    path: PathBuf,
    /// A file that isn't whole before it is ended is put at the end only.
    at_end: bool,
    /// Holds the file, and removes it at the end.
    _folder: TempDir,
}

/// Whose output it is, and how much the rank had delivered before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Begin {
    pub rank: u32,
    pub world_size: u32,
    /// Blocks that the rank's lanes had delivered.
    pub blocks_before: u64,
}

/// What a run goes on from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum From {
    Start,
    /// A checkpoint of this rank at this world size: an output from the run's start is its own.
    OwnCheckpoint,
    OthersCheckpoint,
}

impl Begin {
    /// Blocks to keep of an output that is there, and was begun at `begun` if not at the run's start.
    fn keep(&self, out: &str, from: From, begun: Option<Begin>) -> Result<u64> {
        let wrong =
            |found: &str| Err(Error::new(ErrorKind::Config, format!("--out {out}: {found}; expected a new file")));
        let Begin { rank, world_size, blocks_before } = *self;
        match begun {
            None if from == From::OwnCheckpoint => Ok(blocks_before),
            None => wrong("the file exists, and the checkpoint is of another rank or world size"),
            Some(begun) if (begun.rank, begun.world_size) != (rank, world_size) => wrong(&format!(
                "the file is of rank {} of {}, and this is rank {rank} of {world_size}",
                begun.rank, begun.world_size
            )),
            Some(Begin { blocks_before: first, .. }) => match blocks_before.checked_sub(first) {
                Some(keep) => Ok(keep),
                None => wrong(&format!(
                    "the file begins after {first} blocks, and the checkpoint stands at {blocks_before}"
                )),
            },
        }
    }
}

impl<'a> Output<'a> {
    /// Opens `out`, which is continued if it is there and the run goes on from a checkpoint; `begin` is where the run is now.
    pub fn open(
        out: &str,
        format: Option<OutFormat>,
        block_size: u32,
        masks: bool,
        (from, begin): (From, Begin),
        places: &'a Places<'a>,
    ) -> Result<Output<'a>> {
        if matches!(out, "none" | "-") {
            return Ok(Output { sink: Some(Sink::open(out, format, block_size, masks, None)?), upload: None });
        }
        let (path, folder) = match scheme(out) {
            None => (PathBuf::from(out), None),
            Some(_) => {
                let failed = |error| Error::new(ErrorKind::Write, "can't make a temporary folder").because(error);
                let folder = tempfile::tempdir().map_err(failed)?;
                // The name's end says the format.
                let path = folder.path().join(out.rsplit('/').next().unwrap_or(out));
                if from != From::Start {
                    places.copy(out, &path)?;
                }
                (path, Some(folder))
            }
        };
        let beside = format!("{out}.begin.json");
        let begun = places.read(Path::new(&beside))?;
        let begun = begun.map(|bytes| {
            let unreadable =
                || Error::new(ErrorKind::Config, format!("{beside}: not what a run keeps beside its output"));
            serde_json::from_slice::<Begin>(&bytes).map_err(|error| unreadable().because(error))
        });
        let save = |begin: &Begin| {
            let bytes = serde_json::to_vec(begin).expect("a number is JSON");
            places.write(Path::new(&beside), bytes)
        };
        let is_beside = begun.is_some();
        let keep = match from {
            From::Start => None,
            _ if path.exists() => Some(begin.keep(out, from, begun.transpose()?)?),
            _ => None,
        };
        if from != From::Start && keep.is_none() && (is_beside || begin.blocks_before > 0) {
            save(&begin)?;
        }
        let text = path.to_string_lossy().into_owned();
        let sink = Sink::open(&text, format, block_size, masks, keep).map_err(|error| renamed(error, &text, out))?;
        let at_end = matches!(sink, Sink::Parquet { .. });
        let upload = folder.map(|folder| Upload { places, location: out.to_owned(), path, at_end, _folder: folder });
        let mut output = Output { sink: Some(sink), upload };
        if keep.is_none() {
            // A run that is killed before its first checkpoint can be resumed all the same; the file has to be one by then.
            output.sync()?;
        }
        if from == From::Start && is_beside {
            // That of an output that is no more.
            save(&begin)?;
        }
        Ok(output)
    }

    /// Where it goes, for people.
    pub fn shown(&self) -> Option<String> {
        match &self.upload {
            Some(upload) => Some(upload.location.clone()),
            None => self.sink.as_ref()?.path().map(|path| path.display().to_string()),
        }
    }

    pub fn write(&mut self, block: Block, source: &str) -> Result<()> {
        self.sink.as_mut().expect("it is there until the end").write(block, source)
    }

    /// Makes what was written last.
    pub fn sync(&mut self) -> Result<()> {
        self.sink.as_mut().expect("it is there until the end").sync()?;
        match &self.upload {
            Some(upload) if !upload.at_end => upload.put(),
            _ => Ok(()),
        }
    }

    /// Writes what is left and ends the output.
    pub fn finish(&mut self) -> Result<()> {
        if let Some(sink) = self.sink.take() {
            sink.finish()?;
        }
        self.upload.as_ref().map_or(Ok(()), Upload::put)
    }
}

impl Upload<'_> {
    fn put(&self) -> Result<()> {
        let failed = |error| Error::new(ErrorKind::Write, format!("can't read {}", self.path.display())).because(error);
        self.places.stores()?.put_file(&self.location, &File::open(&self.path).map_err(failed)?)
    }
}

/// An error about the temporary file, with the object's name.
fn renamed(error: Error, file: &str, location: &str) -> Error {
    Error::new(error.kind(), error.detail().replace(file, location))
}
