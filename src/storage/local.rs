//! Local files, read with `pread`: no shared file position, so threads read one file side by side.
//!
//! Why not a memory map: when a mapped file shrinks, touching the lost pages is a SIGBUS that kills the process. Here it is
//! an error that names both sizes.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::storage::Object;

/// A local file.
pub struct LocalFile {
    file: File,
    path: PathBuf,
    size: u64,
}

impl LocalFile {
    /// Opens the file at `path`; its size is taken now.
    ///
    /// # Errors
    /// * `NotFound` - no such file.
    /// * `Read` - it can't be opened, or is no regular file.
    pub fn open(path: &Path) -> Result<LocalFile> {
        let failed = |error: io::Error| {
            let kind = if error.kind() == io::ErrorKind::NotFound { ErrorKind::NotFound } else { ErrorKind::Read };
            Error::new(kind, format!("can't open {}", path.display())).because(error)
        };
        let mut options = File::options();
        options.read(true);
        // Opening a FIFO would else wait for its writer.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
        let file = options.open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            let found = super::list::kind(metadata.file_type());
            return Err(Error::new(ErrorKind::Read, format!("found {found} at {}, expected a file", path.display())));
        }
        Ok(LocalFile { file, path: path.to_owned(), size: metadata.len() })
    }

    /// A file that is open already; `name` is for errors.
    pub(super) fn of(file: File, name: &str) -> Result<LocalFile> {
        let failed = |error| Error::new(ErrorKind::Read, format!("can't read {name}")).because(error);
        let size = file.metadata().map_err(failed)?.len();
        Ok(LocalFile { file, path: name.into(), size })
    }
}

impl Object for LocalFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let wanted = self.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let mut filled = 0;
        while filled < wanted {
            match pread(&self.file, &mut buf[filled..wanted], offset + filled as u64) {
                Ok(0) => {
                    let found = offset + filled as u64;
                    let detail =
                        format!("file shrank: found {found} bytes in {}, expected {}", self.path.display(), self.size);
                    return Err(Error::new(ErrorKind::Read, detail));
                }
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let detail = format!("can't read {wanted} bytes at offset {offset} of {}", self.path.display());
                    return Err(Error::new(ErrorKind::Read, detail).because(error));
                }
            }
        }
        Ok(filled)
    }
}

#[cfg(unix)]
fn pread(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buf, offset)
}

#[cfg(windows)]
fn pread(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buf, offset)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Reads at offsets, short only at the end; a file that shrinks after opening is an error with both sizes.
    #[test]
    fn reads_at_offsets_and_notices_a_shrunk_file() {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(b"0123456789").expect("writable");
        let object = LocalFile::open(file.path()).expect("just written");
        let mut buf = [0; 4];
        assert_eq!(object.size(), 10);
        assert_eq!(object.read_at(3, &mut buf).expect("readable"), 4);
        assert_eq!(&buf, b"3456");
        assert_eq!(object.read_at(8, &mut buf).expect("readable"), 2);
        assert_eq!(object.read_at(10, &mut buf).expect("readable"), 0);
        assert_eq!(object.read_at(u64::MAX, &mut buf).expect("readable"), 0);
        file.as_file().set_len(5).expect("can be cut");
        let error = object.read_at(3, &mut buf).expect_err("the file shrank");
        assert_eq!(error.kind(), ErrorKind::Read);
        assert!(error.detail().contains("found 5 bytes"), "{error}");
        assert!(error.detail().contains("expected 10"), "{error}");
    }

    #[test]
    fn names_what_is_missing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let missing = folder.path().join("none.jsonl");
        assert_eq!(LocalFile::open(&missing).err().expect("missing").kind(), ErrorKind::NotFound);
        assert_eq!(LocalFile::open(folder.path()).err().expect("a folder").kind(), ErrorKind::Read);
    }
}
