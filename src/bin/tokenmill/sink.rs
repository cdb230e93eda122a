//! Where blocks go: JSON lines, a NumPy array, Parquet, or nowhere.
//!
//! Holds: after [`Sink::sync`] every block written is in the file, so a checkpoint taken then never says more than the
//! file has. A file that is continued is cut after the blocks to keep, so it ends up as that of a run never stopped.
//! Does not know: which blocks those are.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde::Serialize;
use tokenmill::block::Block;
use tokenmill::error::{Error, ErrorKind, Result};

use crate::args::OutFormat;
use crate::npy;

/// Blocks of one Parquet row group.
const ROW_GROUP_BLOCKS: usize = 1024;

pub enum Sink {
    None,
    Jsonl { path: Option<PathBuf>, writer: Box<dyn Write>, file: Option<File>, labels: bool },
    Npy { path: PathBuf, writer: BufWriter<File>, rows: u64, columns: u64 },
    Parquet { path: PathBuf, writer: Box<SerializedFileWriter<File>>, blocks: Vec<(Block, String)> },
}

impl Sink {
    /// Opens `out`, of which the first `keep` blocks stay if it is to be continued; `labels` says whether JSON lines have labels.
    pub fn open(
        out: &str,
        format: Option<OutFormat>,
        block_size: u32,
        labels: bool,
        keep: Option<u64>,
    ) -> Result<Sink> {
        let format = match (out, format) {
            ("none", _) => return Ok(Sink::None),
            (_, Some(format)) => format,
            ("-", None) => OutFormat::Jsonl,
            (path, None) => match Path::new(path).extension().and_then(|e| e.to_str()) {
                Some("npy") => OutFormat::Npy,
                Some("jsonl" | "json") => OutFormat::Jsonl,
                Some("parquet") => OutFormat::Parquet,
                _ => return Err(wrong(format!("--out {path}: found no .npy, .jsonl or .parquet, expected --format"))),
            },
        };
        if out == "-" {
            if format != OutFormat::Jsonl {
                return Err(wrong("--out -: only --format jsonl can be written to standard output".into()));
            }
            let writer = Box::new(BufWriter::new(std::io::stdout()));
            return Ok(Sink::Jsonl { path: None, writer, file: None, labels });
        }
        let path = PathBuf::from(out);
        if format == OutFormat::Parquet && keep.is_some() {
            return Err(wrong(format!("--out {out}: a Parquet file can't be continued, expected a new file")));
        }
        match format {
            OutFormat::Jsonl => {
                let mut file = open(&path, keep.is_some())?;
                if let Some(blocks) = keep {
                    cut_lines(&mut file, blocks, &path)?;
                }
                let second = file.try_clone().map_err(|e| failed(&path, e))?;
                Ok(Sink::Jsonl {
                    path: Some(path),
                    writer: Box::new(BufWriter::with_capacity(1 << 20, file)),
                    file: Some(second),
                    labels,
                })
            }
            OutFormat::Npy => {
                let columns = u64::from(block_size);
                let mut file = open(&path, keep.is_some())?;
                let rows = match keep {
                    Some(blocks) => cut_rows(&mut file, blocks, columns, &path)?,
                    None => 0,
                };
                let mut writer = BufWriter::with_capacity(1 << 20, file);
                if rows == 0 {
                    writer.write_all(&npy::header(0, columns)).map_err(|e| failed(&path, e))?;
                }
                Ok(Sink::Npy { path, writer, rows, columns })
            }
            OutFormat::Parquet => {
                let schema = "message block { required int64 g; required int32 lane; required binary source (STRING); required group input_ids (LIST) \
                              { repeated group list { required int32 element; } } required group segment_ids (LIST) \
                              { repeated group list { required int32 element; } } required group position_ids (LIST) \
                              { repeated group list { required int32 element; } } }";
                let schema = Arc::new(parse_message_type(schema).expect("the schema is right"));
                let properties = WriterProperties::builder()
                    .set_compression(parquet::basic::Compression::ZSTD(Default::default()))
                    .build();
                let file = open(&path, false)?;
                let writer =
                    SerializedFileWriter::new(file, schema, Arc::new(properties)).map_err(|e| failed(&path, e))?;
                Ok(Sink::Parquet { path, writer: Box::new(writer), blocks: Vec::new() })
            }
        }
    }

    /// The file's path, if there is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Sink::None => None,
            Sink::Jsonl { path, .. } => path.as_deref(),
            Sink::Npy { path, .. } | Sink::Parquet { path, .. } => Some(path),
        }
    }

    /// Writes a block of the source of that name.
    pub fn write(&mut self, block: Block, source: &str) -> Result<()> {
        match self {
            Sink::None => Ok(()),
            Sink::Jsonl { path, writer, labels, .. } => write_line(writer, &block, source, *labels)
                .map_err(|e| failed(path.as_deref().unwrap_or(Path::new("-")), e)),
            Sink::Npy { path, writer, rows, .. } => {
                *rows += 1;
                let bytes: Vec<u8> = block.input_ids.iter().flat_map(|id| id.to_le_bytes()).collect();
                writer.write_all(&bytes).map_err(|e| failed(path, e))
            }
            Sink::Parquet { path, writer, blocks } => {
                blocks.push((block, source.to_owned()));
                if blocks.len() < ROW_GROUP_BLOCKS {
                    return Ok(());
                }
                write_row_group(writer, &std::mem::take(blocks)).map_err(|e| failed(path, e))
            }
        }
    }

    /// Puts everything written so far into the file.
    pub fn sync(&mut self) -> Result<()> {
        match self {
            Sink::None | Sink::Parquet { .. } => Ok(()),
            Sink::Jsonl { path, writer, file, .. } => {
                let mut sync = || -> std::io::Result<()> {
                    writer.flush()?;
                    file.as_ref().map_or(Ok(()), File::sync_data)
                };
                sync().map_err(|e| failed(path.as_deref().unwrap_or(Path::new("-")), e))
            }
            Sink::Npy { path, writer, rows, columns } => {
                let mut sync = || -> std::io::Result<()> {
                    writer.flush()?;
                    let file = writer.get_mut();
                    let end = file.stream_position()?;
                    file.seek(SeekFrom::Start(0))?;
                    file.write_all(&npy::header(*rows, *columns))?;
                    file.seek(SeekFrom::Start(end))?;
                    file.sync_data()
                };
                sync().map_err(|e| failed(path, e))
            }
        }
    }

    /// Writes what is left and ends the file.
    pub fn finish(mut self) -> Result<()> {
        self.sync()?;
        if let Sink::Parquet { path, mut writer, blocks } = self {
            write_row_group(&mut writer, &blocks).map_err(|e| failed(&path, e))?;
            writer.close().map_err(|e| failed(&path, e))?;
        }
        Ok(())
    }
}

fn wrong(detail: String) -> Error {
    Error::new(ErrorKind::Config, detail)
}

fn failed(path: &Path, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Write, format!("can't write {}", path.display())).because(error)
}

fn open(path: &Path, keep: bool) -> Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(!keep).open(path).map_err(|e| failed(path, e))
}

#[derive(Serialize)]
struct Line<'a> {
    g: u64,
    lane: u32,
    source: &'a str,
    input_ids: &'a [u32],
    segment_ids: Vec<u32>,
    position_ids: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<Vec<i64>>,
}

fn write_line(writer: &mut dyn Write, block: &Block, source: &str, labels: bool) -> std::io::Result<()> {
    let line = Line {
        g: block.index,
        lane: block.lane,
        source,
        input_ids: &block.input_ids,
        segment_ids: block.segment_ids(),
        position_ids: block.position_ids(),
        labels: labels.then(|| block.labels()),
    };
    serde_json::to_writer(&mut *writer, &line)?;
    writer.write_all(b"\n")
}

/// Cuts a file of JSON lines after its first `blocks` lines.
fn cut_lines(file: &mut File, blocks: u64, path: &Path) -> Result<()> {
    let mut reader = BufReader::with_capacity(1 << 20, &mut *file);
    let (mut lines, mut size) = (0, 0);
    let mut buffer = vec![0; 1 << 20];
    'read: while lines < blocks {
        let count = reader.read(&mut buffer).map_err(|e| failed(path, e))?;
        if count == 0 {
            return Err(shorter(path, lines, blocks));
        }
        for end in memchr::memchr_iter(b'\n', &buffer[..count]) {
            lines += 1;
            if lines == blocks {
                size += end as u64 + 1;
                break 'read;
            }
        }
        size += count as u64;
    }
    file.set_len(size).and_then(|()| file.seek(SeekFrom::Start(size))).map_err(|e| failed(path, e))?;
    Ok(())
}

/// Cuts a NumPy file after its first `blocks` rows.
fn cut_rows(file: &mut File, blocks: u64, columns: u64, path: &Path) -> Result<u64> {
    let mut header = [0; npy::HEADER_BYTES];
    let size = file.metadata().map_err(|e| failed(path, e))?.len();
    if (size, blocks) == (0, 0) {
        // Made, and stopped before anything was written.
        return Ok(0);
    }
    if file.read_exact(&mut header).is_err() || !npy::has_columns(&header, columns) {
        return Err(wrong(format!("--out {}: the file isn't this run's array of {columns} columns", path.display())));
    }
    let rows = (size - npy::HEADER_BYTES as u64) / (4 * columns);
    if rows < blocks {
        return Err(shorter(path, rows, blocks));
    }
    let size = npy::HEADER_BYTES as u64 + 4 * columns * blocks;
    file.set_len(size).and_then(|()| file.seek(SeekFrom::Start(size))).map_err(|e| failed(path, e))?;
    if blocks == 0 {
        file.seek(SeekFrom::Start(0)).map_err(|e| failed(path, e))?;
    }
    Ok(blocks)
}

fn shorter(path: &Path, found: u64, expected: u64) -> Error {
    wrong(format!(
        "--out {}: the file has {found} blocks, expected at least the {expected} that the run gave it up to the checkpoint; name a new file",
        path.display()
    ))
}

fn write_row_group(writer: &mut SerializedFileWriter<File>, blocks: &[(Block, String)]) -> parquet::errors::Result<()> {
    if blocks.is_empty() {
        return Ok(());
    }
    let mut group = writer.next_row_group()?;
    let mut number = 0;
    while let Some(mut column) = group.next_column()? {
        match number {
            0 => {
                let values: Vec<i64> = blocks.iter().map(|(block, _)| block.index as i64).collect();
                column.typed::<Int64Type>().write_batch(&values, None, None)?;
            }
            1 => {
                let values: Vec<i32> = blocks.iter().map(|(block, _)| block.lane as i32).collect();
                column.typed::<Int32Type>().write_batch(&values, None, None)?;
            }
            2 => {
                let values: Vec<ByteArray> = blocks.iter().map(|(_, source)| source.as_str().into()).collect();
                column.typed::<ByteArrayType>().write_batch(&values, None, None)?;
            }
            _ => {
                for (block, _) in blocks {
                    let ids = match number {
                        3 => block.input_ids.clone(),
                        4 => block.segment_ids(),
                        _ => block.position_ids(),
                    };
                    let values: Vec<i32> = ids.into_iter().map(|id| id as i32).collect();
                    let definition = vec![1i16; values.len()];
                    let repetition: Vec<i16> = (0..values.len()).map(|i| i16::from(i > 0)).collect();
                    column.typed::<Int32Type>().write_batch(&values, Some(&definition), Some(&repetition))?;
                }
            }
        }
        column.close()?;
        number += 1;
    }
    group.close()?;
    Ok(())
}
