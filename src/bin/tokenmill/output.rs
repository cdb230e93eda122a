//! The output of a run: a file, or an object that is put as a whole whenever the file would be synced.
//!
//! Holds: an object is the output up to the last checkpoint or the end, never a part of a block. Why not append: objects can't be
//! appended to. So each checkpoint puts all of it again, in parts; output that is large and checkpointed often is better kept in
//! a file.

use std::fs::File;
use std::path::PathBuf;

use tempfile::TempDir;
use tokenmill::block::Block;
use tokenmill::error::{Error, ErrorKind, Result};
use tokenmill::storage::scheme;

use crate::args::OutFormat;
use crate::places::Places;
use crate::sink::{Before, Sink};

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

impl<'a> Output<'a> {
    /// Opens `out`; `before` is given on a resume.
    pub fn open(
        out: &str,
        format: Option<OutFormat>,
        block_size: u32,
        masks: bool,
        before: Option<Before>,
        places: &'a Places<'a>,
    ) -> Result<Output<'a>> {
        if scheme(out).is_none() {
            return Ok(Output { sink: Some(Sink::open(out, format, block_size, masks, before)?), upload: None });
        }
        let failed = |error| Error::new(ErrorKind::Write, "can't make a temporary folder").because(error);
        let folder = tempfile::tempdir().map_err(failed)?;
        // The name's end says the format.
        let path = folder.path().join(out.rsplit('/').next().unwrap_or(out));
        if before.is_some() {
            places.copy(out, &path)?;
        }
        let text = path.to_string_lossy().into_owned();
        let sink = Sink::open(&text, format, block_size, masks, before).map_err(|error| renamed(error, &text, out))?;
        let at_end = matches!(sink, Sink::Parquet { .. });
        let upload = Upload { places, location: out.to_owned(), path, at_end, _folder: folder };
        Ok(Output { sink: Some(sink), upload: Some(upload) })
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
