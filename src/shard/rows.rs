//! Parquet: rows of one column of strings, a record each; or of several columns, a JSON object each.
//!
//! Units are runs of row groups of about a span, measured by the column's uncompressed size. A row group of two spans or more is cut
//! into ranges of rows of about a span each, but of 8 MiB at least: the pages before a range are stepped over by their
//! headers, but its first and last page and the dictionary are decompressed for each range again. A file that gives too few units for
//! the lanes that share it is read in order instead, as one unit, each page once for all of them. Why not cut it finer: with
//! ranges smaller than a page, decompressing took three times as long as tokenizing.
//!
//! A window is the longest run of rows, from the unit's start or the window before, that fits its size; at least one row. A row takes
//! its value's bytes and four more (as in Parquet's plain encoding), so nulls and empty strings don't fill a window without end. Which
//! row a window begins with depends on all rows before it, so a reader that starts there is told the row, or counts up to it.
//!
//! Damage is found to the row: rows that can't be decoded together are decoded one by one. Where it is to be passed over
//! (`skip`), the rows from there to the end of the row group or of the unit are lost, told as a [`Loss`], and the window ends.
//!
//! Of several columns, row groups aren't cut: `record.rs` decodes them from their start. Holds: only the columns that are asked for are read. Memory is one page, a window and one record. Whatever the file says, sizes are compared
//! with the object before they are believed, and a panic of the Parquet crate on damaged data is an error here.
//! Does not know: Arrow, other columns.

use std::io::{self, BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::Type;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::record::reader::ReaderIter;
use parquet::schema::types::SchemaDescriptor;

use super::record::{Columns, Records, bytes_of};
use crate::document::{Loss, RecordRange, Window};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::{Object, Reading, reader};

/// What a row takes beside its value's bytes.
const ROW_SIZE: u64 = 4;

/// Rows decoded at once, at most; fewer where they are large.
const BATCH_ROWS_MAX: usize = 256;
/// Bytes of a batch beyond which the next one is made smaller.
const BATCH_SIZE: usize = 256 << 10;

/// Bytes of the parts that a large row group is cut into, at least. Unit tests cut small ones.
pub(crate) const SPLIT_MIN: u64 = if cfg!(test) { 1 } else { 8 << 20 };

/// The magic bytes a Parquet file begins and ends with.
pub(crate) const MAGIC: &[u8; 4] = b"PAR1";

/// An object as the Parquet crate wants it.
struct Chunks(Arc<dyn Object>);

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.0.size()
    }
}

impl ChunkReader for Chunks {
    type T = BufReader<From>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(BufReader::new(From { object: self.0.clone(), offset: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.0.size()) {
            return Err(ParquetError::EOF(format!(
                "found {} bytes, expected {length} at offset {start}",
                self.0.size()
            )));
        }
        let mut bytes = vec![0; length];
        let count = self.0.read_at(start, &mut bytes).map_err(|error| ParquetError::External(Box::new(error)))?;
        if count < length {
            return Err(ParquetError::EOF(format!("found {count} bytes, expected {length} at offset {start}")));
        }
        Ok(bytes.into())
    }
}

/// The bytes of an object from an offset on.
struct From {
    object: Arc<dyn Object>,
    offset: u64,
}

impl Read for From {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.object.read_at(self.offset, buf).map_err(io::Error::other)?;
        self.offset += count as u64;
        Ok(count)
    }
}

/// Calls the Parquet crate: its errors become ours, and its panics too.
fn guard<T>(call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(ours(&error).unwrap_or_else(|| corrupt(&error.to_string()).because(error))),
        Err(_) => Err(corrupt("the decoder panicked on damaged data")),
    }
}

fn corrupt(found: &str) -> Error {
    // The crate's messages start with a word for the kind of error.
    let found = found.trim_start_matches("Parquet error: ").trim_start_matches("External: ");
    Error::new(ErrorKind::Corrupt, format!("parquet: {found}"))
}

/// An error of ours that went through the Parquet crate.
fn ours(error: &ParquetError) -> Option<Error> {
    let ParquetError::External(source) = error else { return None };
    if let Some(error) = source.downcast_ref::<Error>() {
        return Some(error.clone());
    }
    source.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref::<Error>().cloned()
}

/// Consecutive rows that are cut evenly into units.
struct Part {
    first_unit: u64,
    units: u64,
    first_row: u64,
    rows: u64,
}

/// What of a file's rows is read.
enum Content {
    /// The number of a column of strings; nulls are told by a level below this one.
    Column(usize, i16),
    Records(Records),
}

/// A row group that is being read.
enum Group {
    Column(Box<ColumnReaderImpl<ByteArrayType>>),
    Records(Box<ReaderIter>),
}

/// An open Parquet file: its column, row groups and units.
pub(crate) struct RowTable {
    file: SerializedFileReader<Chunks>,
    object: Arc<dyn Object>,
    content: Content,
    /// Index of each row group's first row, and the number of all rows.
    group_starts: Vec<u64>,
    parts: Vec<Part>,
    in_order: bool,
}

impl RowTable {
    /// Opens a file whose column is called `text_field`, or of which `columns` make JSON objects; its footer is read from the first object, pages from the second, the same. Row groups are joined to units of about `span` bytes, and cut into parts of at
    /// least `split_min`; a file of fewer units than `units_min` becomes one unit, to be read in order.
    pub(crate) fn open(
        (object, data): (Arc<dyn Object>, Arc<dyn Object>),
        (text_field, columns): (&str, Option<&Columns>),
        span: u64,
        split_min: u64,
        units_min: u64,
    ) -> Result<RowTable> {
        let mut magic = [0; 4];
        let count = object.read_at(0, &mut magic)?;
        if &magic != MAGIC {
            let detail = format!("parquet: found the {count} bytes {magic:02x?} at the start, expected PAR1");
            return Err(Error::new(ErrorKind::Corrupt, detail));
        }
        let file = guard(|| SerializedFileReader::new(Chunks(object)))?;
        let metadata = file.metadata();
        let schema = metadata.file_metadata().schema_descr();
        let (content, leaves) = match columns {
            Some(columns) => {
                let records = Records::find(schema, columns)?;
                let leaves = records.leaves.clone();
                (Content::Records(records), leaves)
            }
            None => {
                let (column, level_max) = text_column(schema, text_field)?;
                (Content::Column(column, level_max), vec![column])
            }
        };
        // Of several columns a group is decoded from its start, so it isn't cut.
        let split_min = if columns.is_some() { u64::MAX } else { split_min };

        let mut group_starts = vec![0u64];
        let mut parts: Vec<Part> = Vec::new();
        // Size of the last part, while it can still grow.
        let mut filled = None;
        for group in metadata.row_groups() {
            let first_row = group_starts[group_starts.len() - 1];
            let implausible = || corrupt(&format!("found {} rows in a row group", group.num_rows()));
            let rows = u64::try_from(group.num_rows()).map_err(|_| implausible())?;
            group_starts.push(first_row.checked_add(rows).ok_or_else(implausible)?);
            if leaves.iter().any(|&leaf| leaf >= group.num_columns()) {
                return Err(corrupt(&format!(
                    "found {} columns in a row group, expected {}",
                    group.num_columns(),
                    schema.num_columns()
                )));
            }
            let sizes = leaves.iter().map(|&leaf| u64::try_from(group.column(leaf).uncompressed_size()).unwrap_or(0));
            let size = sizes.fold(0, u64::saturating_add);
            if rows == 0 {
                continue;
            }
            let first_unit = parts.last().map_or(0, |part| part.first_unit + part.units);
            if size / 2 >= span.max(split_min) {
                let units = size.div_ceil(span.max(split_min)).min(rows);
                first_unit.checked_add(units).ok_or_else(implausible)?;
                parts.push(Part { first_unit, units, first_row, rows });
                filled = None;
                continue;
            }
            match (&mut filled, parts.last_mut()) {
                (Some(filled), Some(part)) if *filled < span => {
                    part.rows += rows;
                    *filled = u64::saturating_add(*filled, size);
                }
                _ => {
                    parts.push(Part { first_unit, units: 1, first_row, rows });
                    filled = Some(size);
                }
            }
        }
        let mut table = RowTable { file, object: data, content, group_starts, parts, in_order: false };
        if table.units() > 0 && table.units() < units_min {
            table.in_order = true;
            table.parts = vec![Part {
                first_unit: 0,
                units: 1,
                first_row: 0,
                rows: table.group_starts[table.group_starts.len() - 1],
            }];
        }
        Ok(table)
    }

    /// Whether its records are JSON objects.
    pub(crate) fn gives_json(&self) -> bool {
        matches!(self.content, Content::Records(_))
    }

    /// The level below which a value is null.
    fn level_max(&self) -> i16 {
        match self.content {
            Content::Column(_, level_max) => level_max,
            Content::Records(_) => 0,
        }
    }

    /// Whether it is one unit that all lanes share.
    pub(crate) fn in_order(&self) -> bool {
        self.in_order
    }

    pub(crate) fn units(&self) -> u64 {
        self.parts.last().map_or(0, |part| part.first_unit + part.units)
    }

    /// First row of `unit`, and the row after its last.
    fn rows(&self, unit: u64) -> (u64, u64) {
        let part = &self.parts[self.parts.partition_point(|part| part.first_unit <= unit) - 1];
        let border =
            |index: u64| part.first_row + (u128::from(index) * u128::from(part.rows) / u128::from(part.units)) as u64;
        (border(unit - part.first_unit), border(unit - part.first_unit + 1))
    }
}

/// Reads the windows of one unit.
pub(crate) struct RowReader {
    shard: Arc<str>,
    table: Arc<RowTable>,
    /// The object, or a second look at it.
    object: Arc<dyn Object>,
    window: u64,
    record_max: u64,
    /// The row group being read, with the index of the row after its last.
    group: Option<(Group, u64)>,
    /// Decoded rows: `levels` has one a row (none if the column has no nulls), `values` one a row that isn't null.
    levels: Vec<i16>,
    values: Vec<ByteArray>,
    /// Next of each.
    level: usize,
    value: usize,
    /// Rows in the batch not yet taken.
    batch_left: usize,
    /// Rows to decode next time.
    batch_rows: usize,
    /// Index of the next row, and of the row after the unit's last.
    row: u64,
    end: u64,
    /// Index of the window that begins with `row`, and of the first to deliver.
    next: u64,
    first: u64,
    /// Damage is passed over.
    skip: bool,
    /// Rows are decoded one by one up to this one: something before it can't be decoded.
    one_by_one: u64,
    losses: Vec<Loss>,
    failed: Option<Error>,
}

impl RowReader {
    /// Starts with window `first`, which begins with row `row` if that is known.
    pub(crate) fn new(
        shard: Arc<str>,
        table: Arc<RowTable>,
        unit: u64,
        (first, row): (u64, Option<u64>),
        window: u64,
        record_max: u64,
        skip: bool,
    ) -> Result<RowReader> {
        let (start, end) = table.rows(unit);
        let (next, row) = match row {
            Some(row) if first > 0 => {
                if row < start || row > end {
                    let detail = format!("found row {row} as a start in unit {unit}, expected {start} to {end}");
                    return Err(Error::new(ErrorKind::StateMismatch, detail));
                }
                (first, row)
            }
            _ => (0, start),
        };
        Ok(RowReader {
            shard,
            object: table.object.clone(),
            table,
            window,
            record_max,
            group: None,
            levels: Vec::new(),
            values: Vec::new(),
            level: 0,
            value: 0,
            batch_left: 0,
            batch_rows: 1,
            row,
            end,
            next,
            first,
            skip,
            one_by_one: 0,
            losses: Vec::new(),
            failed: None,
        })
    }

    pub(crate) fn take_losses(&mut self) -> Vec<Loss> {
        std::mem::take(&mut self.losses)
    }

    pub(crate) fn position(&self) -> u64 {
        self.next.max(self.first)
    }

    pub(crate) fn next_window(&mut self, window: &mut Window, wanted: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.advance(window, wanted).map_err(|error| {
            let error = error.at_record(self.row).in_shard(&self.shard);
            self.failed = Some(error.clone());
            error
        })
    }

    fn advance(&mut self, window: &mut Window, wanted: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        while self.row < self.end {
            let index = self.next;
            let is_wanted = index >= self.first && wanted(index);
            window.index = index;
            window.byte_start = 0;
            window.first_record = Some(self.row);
            window.records.clear();
            window.bytes.clear();
            let mut size = 0u64;
            let mut ordinal = 0u32;
            while self.row < self.end {
                if self.batch_left == 0
                    && let Err(error) = self.decode_exactly()
                {
                    self.pass_damage(error, index)?;
                    break;
                }
                let null = self.levels.get(self.level).is_some_and(|&level| level < self.table.level_max());
                let value: &[u8] = if null { b"" } else { self.values[self.value].data() };
                let row_size = ROW_SIZE + value.len() as u64;
                if ordinal > 0 && size + row_size > self.window {
                    break;
                }
                size += row_size;
                if is_wanted {
                    if value.len() as u64 > self.record_max {
                        let detail =
                            format!("found a record of {} bytes, expected at most {}", value.len(), self.record_max);
                        return Err(Error::new(ErrorKind::Limit, detail));
                    }
                    let start = window.bytes.len() as u32;
                    window.bytes.extend_from_slice(value);
                    window.records.push(RecordRange { start, len: value.len() as u32, ordinal, null });
                }
                ordinal += 1;
                self.level += 1;
                self.value += usize::from(!null);
                self.batch_left -= 1;
                self.row += 1;
            }
            if ordinal == 0 {
                // Lost as a whole: the window begins behind the damage.
                continue;
            }
            self.next = index + 1;
            if is_wanted {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Passes over damage found while window `index` was read, if that is wanted.
    fn pass_damage(&mut self, error: Error, index: u64) -> Result<()> {
        if !self.skip || error.kind() != ErrorKind::Corrupt {
            return Err(error);
        }
        let starts = &self.table.group_starts;
        let next = starts[starts.partition_point(|&start| start <= self.row)].min(self.end);
        let error = error.and(&format!("rows {} to {} are passed over", self.row, next - 1)).at_record(self.row);
        self.losses.push(Loss { window: index, error: error.in_shard(&self.shard) });
        self.row = next;
        self.group = None;
        Ok(())
    }

    /// Decodes the next rows, or fails at the very row that can't be decoded.
    ///
    /// Where a reader started decides how rows are batched, and it must not decide which rows are lost.
    fn decode_exactly(&mut self) -> Result<()> {
        let Err(mut error) = self.decode() else { return Ok(()) };
        if error.kind() == ErrorKind::Corrupt
            && let Some(again) = self.object.read_again()
        {
            tracing::warn!("{error}; the pages are read again, to see whether that happened on the way");
            self.object = again;
            self.group = None;
            match self.decode() {
                Ok(()) => return Ok(()),
                Err(found) => error = found,
            }
        }
        if error.kind() != ErrorKind::Corrupt || self.row < self.one_by_one {
            return Err(error);
        }
        let starts = &self.table.group_starts;
        self.one_by_one = starts[starts.partition_point(|&start| start <= self.row)];
        self.group = None;
        self.decode()
    }

    /// Decodes the next rows; there is at least one.
    fn decode(&mut self) -> Result<()> {
        if self.group.as_ref().is_some_and(|&(_, end)| end == self.row) {
            self.group = None;
        }
        if self.group.is_none() {
            self.group = Some(self.open_group()?);
        }
        let (reader, group_end) = self.group.as_mut().expect("opened above");
        let left = (*group_end).min(self.end) - self.row;
        let batch = if self.row < self.one_by_one { 1 } else { self.batch_rows as u64 };
        let wanted = left.min(batch) as usize;
        self.levels.clear();
        self.values.clear();
        (self.level, self.value) = (0, 0);
        let (levels, values) = (&mut self.levels, &mut self.values);
        let (rows, value_count) = guard(|| match reader {
            Group::Column(reader) => {
                reader.read_records(wanted, Some(levels), None, values).map(|(rows, values, _)| (rows, values))
            }
            Group::Records(reader) => {
                for row in reader.take(wanted) {
                    values.push(bytes_of(row?).into());
                }
                Ok((values.len(), values.len()))
            }
        })?;
        let level_max = self.table.level_max();
        let consistent = value_count == self.values.len()
            && if level_max == 0 {
                rows == value_count
            } else {
                rows == self.levels.len()
                    && self.levels.iter().filter(|&&level| level >= level_max).count() == value_count
            };
        if rows == 0 || rows > wanted || !consistent {
            return Err(corrupt(&format!(
                "found {rows} rows and {value_count} values, expected {left} rows more in the row group"
            )));
        }
        self.batch_left = rows;
        let size: usize = self.values.iter().map(ByteArray::len).sum();
        self.batch_rows =
            if size < BATCH_SIZE { (self.batch_rows * 2).min(BATCH_ROWS_MAX) } else { (self.batch_rows / 2).max(1) };
        Ok(())
    }

    /// Opens the row group that holds the next row, at that row.
    fn open_group(&self) -> Result<(Group, u64)> {
        let starts = &self.table.group_starts;
        // Of row groups without rows, which share a start, the last one is meant: it has rows.
        let index = starts.partition_point(|&start| start <= self.row) - 1;
        let group = self.table.file.metadata().row_group(index);
        let skip = (self.row - starts[index]) as usize;
        let object = |leaf: usize, steps: bool| {
            let (start, size) = group.column(leaf).byte_range();
            let how = Reading::Only { steps };
            Arc::new(Chunks(reader(&self.object, start..start.saturating_add(size), how)))
        };
        let (group, skipped) = guard(|| match &self.table.content {
            Content::Column(column, _) => {
                // Pages before the row are stepped over.
                let object = object(*column, skip > 0);
                let column = group.column(*column);
                let pages = SerializedPageReader::new(object, column, usize::try_from(group.num_rows())?, None)?;
                let reader = get_column_reader(column.column_descr_ptr(), Box::new(pages));
                let ColumnReader::ByteArrayColumnReader(mut reader) = reader else {
                    return Err(ParquetError::General("found a column of another type in a row group".into()));
                };
                let skipped = reader.skip_records(skip)?;
                Ok((Group::Column(Box::new(reader)), skipped))
            }
            Content::Records(records) => {
                let mut reader = records.open(group, &|leaf| object(leaf, false))?;
                let mut skipped = 0;
                for row in reader.by_ref().take(skip) {
                    row?;
                    skipped += 1;
                }
                Ok((Group::Records(Box::new(reader)), skipped))
            }
        })?;
        if skipped != skip {
            return Err(corrupt(&format!("found {skipped} rows in row group {index}, expected more than {skip}")));
        }
        Ok((group, starts[index + 1]))
    }
}

/// The number of the column of strings called `name`, and the level of its values.
fn text_column(schema: &SchemaDescriptor, name: &str) -> Result<(usize, i16)> {
    let columns = schema.columns();
    let column = columns.iter().position(|column| column.path().string() == name).ok_or_else(|| {
        let names: Vec<String> = columns.iter().take(20).map(|column| column.path().string()).collect();
        Error::new(ErrorKind::Config, format!("no column {name:?}, found {}", names.join(", ")))
    })?;
    let found = match (columns[column].physical_type(), columns[column].max_rep_level()) {
        (Type::BYTE_ARRAY, 0) => None,
        (Type::BYTE_ARRAY, _) => Some("a list".to_owned()),
        (other, _) => Some(other.to_string()),
    };
    if let Some(found) = found {
        let detail = format!("column {name:?} is {found}, expected a string or binary");
        return Err(Error::new(ErrorKind::Config, detail));
    }
    Ok((column, columns[column].max_def_level()))
}
