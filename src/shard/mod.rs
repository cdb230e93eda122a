//! Shards: one object in, windows of records out.
//!
//! A shard is cut into *units* that can be read alone, a unit into *windows* of consecutive records. How, follows from the
//! shard's content and the options alone, so every reader of it agrees on it:
//!
//! | layout      | shards                                     | a unit                                    |
//! |-------------|--------------------------------------------|-------------------------------------------|
//! | `ranges`    | plain lines or text                        | a range of bytes                          |
//! | `frames`    | zstd of several frames                     | consecutive frames                        |
//! | `rowgroups` | Parquet                                    | row groups, or rows of a large one        |
//! | `stream`    | gzip, xz, bzip2, lz4, zstd of one frame    | all of it                                 |
//!
//! Text without a separator is one document, hence one unit with one window. Which record lies in which window is said in
//! `grid` (all but Parquet) and in `rows`.
//!
//! Holds: each record is in exactly one window, and a window is the same from whichever one a reader started. Blank lines are no
//! records, but count as lines. Does not know: lanes, shuffling, tokens.

mod codec;
mod frames;
mod grid;
mod json;
mod record;
mod rows;
mod separator;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::document::{Loss, Window};
use crate::error::{Error, ErrorKind, Result};
pub(crate) use crate::shard::codec::HELD as CHECKED_AHEAD;
use crate::shard::codec::{Again, Codec, Decode, Plain, Zstd};
use crate::shard::frames::FrameTable;
use crate::shard::grid::{GridPlan, GridReader, WholeReader};
use crate::shard::json::FieldPath;
pub use crate::shard::record::Columns;
use crate::shard::rows::{RowReader, RowTable};
use crate::shard::separator::Separator;
use crate::storage::{Object, Reading, reader};

/// No record and no window may be larger: offsets in a window are 32 bits.
const SIZE_MAX: u64 = 1 << 30;

/// What a reader of text expects to read behind its range.
const RECORD_REST: u64 = 32 << 10;

/// How a shard holds its records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Told by content and name.
    #[default]
    Auto,
    /// A JSON object a line.
    Jsonl,
    /// Plain text: documents between separators, or one document.
    Text,
    /// A row a document.
    Parquet,
}

/// How to read a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardOptions {
    /// How records are held; `Auto` asks content and name.
    pub format: Format,
    /// Dotted path of the field or column that holds the text.
    pub text_field: String,
    /// The columns of Parquet that make a record, a JSON object, in place of the one that holds text.
    pub columns: Option<Columns>,
    /// What stands between the documents of a text shard; `None`: it is one document. Documents are taken as they are, a `\r`
    /// before a line end included; empty ones are left out.
    pub separator: Option<String>,
    /// Uncompressed bytes of a unit, about.
    pub span: u64,
    /// Uncompressed bytes of a window, about; at most 1 GiB.
    pub window: u64,
    /// Size in bytes of the largest record that is taken; at most 1 GiB.
    pub record_max: u64,
    /// A zstd or Parquet shard of fewer units than this is read in order, as if it couldn't be seeked: what shares it needs
    /// more parts than it has frames or row groups.
    pub units_min: u64,
    /// Damage is passed over as far as the layout allows, and told by [`UnitReader::take_losses`].
    pub skip_damage: bool,
}

impl Default for ShardOptions {
    fn default() -> Self {
        ShardOptions {
            format: Format::Auto,
            text_field: "text".to_owned(),
            columns: None,
            separator: None,
            span: 16 << 20,
            window: 2 << 20,
            record_max: 256 << 20,
            units_min: 0,
            skip_damage: false,
        }
    }
}

/// Where in a unit to start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Start {
    /// Index of the first window to deliver.
    pub window: u64,
    /// [`Window::first_record`] of that window, which saves Parquet from counting up to it; others don't need it.
    pub record: Option<u64>,
}

/// An open shard.
#[derive(Clone)]
pub struct Shard {
    object: Arc<dyn Object>,
    name: Arc<str>,
    format: Format,
    codec: Codec,
    field: FieldPath,
    /// `None`: the shard is one document.
    separator: Option<Arc<Separator>>,
    layout: Layout,
    window: u64,
    record_max: u64,
    skip_damage: bool,
}

#[derive(Clone)]
enum Layout {
    Ranges {
        units: u64,
    },
    Frames {
        table: Arc<FrameTable>,
        units: Arc<Vec<usize>>,
    },
    RowGroups {
        table: Arc<RowTable>,
    },
    /// With the frames of a zstd shard that has too few of them.
    Stream {
        table: Option<Arc<FrameTable>>,
    },
}

impl Shard {
    /// Opens `object`, called `name` in errors, and finds its units.
    ///
    /// Cost: reads the first bytes, and decompresses a few; of zstd the seek table or block headers; of Parquet the footer.
    ///
    /// # Errors
    /// * `Config` - the options can't be used, or the format can't be told; a Parquet column isn't there or holds no text.
    /// * `Corrupt` - the container is damaged; the text is UTF-16.
    /// * `Limit` - decompressing needs too much memory.
    /// * `Read` - the object can't be read.
    pub fn open(object: Arc<dyn Object>, name: Arc<str>, options: &ShardOptions) -> Result<Shard> {
        let open = |from: Arc<dyn Object>, data| Shard::open_unnamed(from, data, name.clone(), options);
        // Compression of another kind than the name says, or none, may be a damaged first byte.
        let odd = |shard: &Shard| shard.codec.name() != compression_by_name(&name);
        let again = || {
            let again = object.read_again()?;
            let shard = open(again.clone(), object.clone());
            Some(shard.map(|shard| if again.in_memory() { shard.with_object(again) } else { shard }))
        };
        let first = if object.is_doubtful(false) { again() } else { None };
        let result = match first.unwrap_or_else(|| open(object.clone(), object.clone())) {
            Ok(shard) if !object.is_doubtful(true) && !odd(&shard) => Ok(shard),
            // It was read again already.
            Ok(shard) if object.is_doubtful(false) && !odd(&shard) => Ok(shard),
            Err(error) if !matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Config) => Err(error),
            // What can't be made sense of, too, may have been damaged on the way.
            Err(error) => again().unwrap_or_else(|| Err(error.clone())).map_err(|_| error),
            Ok(shard) => again().unwrap_or(Ok(shard)),
        };
        result.map_err(|error| error.in_shard(&name))
    }

    /// Opens what is made of `object`; later reads are of `data`, the same object.
    fn open_unnamed(
        object: Arc<dyn Object>,
        data: Arc<dyn Object>,
        name: Arc<str>,
        options: &ShardOptions,
    ) -> Result<Shard> {
        for (key, value) in [("window", options.window), ("record_max", options.record_max)] {
            if value == 0 || value > SIZE_MAX {
                return Err(Error::new(ErrorKind::Config, format!("{key} is {value}, expected 1 to {SIZE_MAX} bytes")));
            }
        }
        if options.span == 0 {
            return Err(Error::new(ErrorKind::Config, "span is 0, expected at least 1 byte"));
        }
        if options.separator.as_deref() == Some("") {
            return Err(Error::new(ErrorKind::Config, "separator is empty, expected at least 1 byte"));
        }
        let codec = Codec::detect(&*object)?;
        let format = resolve(&object, &name, codec, options)?;
        let separator = match format {
            Format::Parquet => None,
            Format::Jsonl => Some(Separator::new(b"\n")),
            _ => options.separator.as_ref().map(|separator| Separator::new(separator.as_bytes())),
        }
        .map(Arc::new);
        let layout = match &separator {
            _ if format == Format::Parquet => {
                let table = RowTable::open(
                    (object.clone(), data.clone()),
                    (&options.text_field, options.columns.as_ref()),
                    options.span,
                    rows::SPLIT_MIN,
                    options.units_min,
                )?;
                Layout::RowGroups { table: Arc::new(table) }
            }
            Some(separator) if !separator.overlaps() && codec == Codec::None => {
                Layout::Ranges { units: object.size().div_ceil(options.span) }
            }
            Some(separator) if !separator.overlaps() && codec == Codec::Zstd => {
                match FrameTable::find(&object)?.map(|table| (table.units(options.span), Arc::new(table))) {
                    Some((units, table)) if units.len() as u64 >= options.units_min => {
                        Layout::Frames { table, units: Arc::new(units) }
                    }
                    found => Layout::Stream { table: found.map(|(_, table)| table) },
                }
            }
            _ => Layout::Stream { table: None },
        };
        let field = FieldPath::new(&options.text_field);
        let (window, record_max) = (options.window, options.record_max);
        let skip_damage = options.skip_damage;
        Ok(Shard { object: data, name, format, codec, field, separator, layout, window, record_max, skip_damage })
    }

    /// The same, its records read from `object`, which has the same bytes. Parquet's pages stay with what they were opened with.
    fn with_object(self, object: Arc<dyn Object>) -> Shard {
        Shard { object, ..self }
    }

    /// The name it was opened with.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// How it holds its records; never `Auto`.
    pub fn format(&self) -> Format {
        self.format
    }

    /// `none`, `gzip`, `zstd`, `xz`, `bzip2` or `lz4`.
    pub fn compression(&self) -> &'static str {
        self.codec.name()
    }

    /// `ranges`, `frames`, `rowgroups` or `stream`.
    pub fn layout(&self) -> &'static str {
        match self.layout {
            Layout::Ranges { .. } => "ranges",
            Layout::Frames { .. } => "frames",
            Layout::RowGroups { .. } => "rowgroups",
            Layout::Stream { .. } => "stream",
        }
    }

    /// How many units there are; none in an empty shard of ranges.
    pub fn units(&self) -> u64 {
        match &self.layout {
            Layout::Ranges { units } => *units,
            Layout::Frames { units, .. } => units.len() as u64,
            Layout::RowGroups { table } => table.units(),
            Layout::Stream { .. } => 1,
        }
    }

    /// Whether it can only be read front to back, as one unit.
    pub fn is_stream(&self) -> bool {
        match &self.layout {
            Layout::RowGroups { table } => table.in_order(),
            layout => matches!(layout, Layout::Stream { .. }),
        }
    }

    /// A reader of the windows of `unit` from `start` on.
    ///
    /// Cost: in a stream, and in frames that don't tell their sizes, everything before is decompressed, on the first call of
    /// [`UnitReader::next_window`].
    ///
    /// # Errors
    /// * `Internal` - there is no such unit.
    pub fn read_unit(&self, unit: u64, start: Start) -> Result<UnitReader> {
        self.open_unit(unit, start).map_err(|error| error.in_shard(&self.name))
    }

    fn open_unit(&self, unit: u64, start: Start) -> Result<UnitReader> {
        if unit >= self.units() {
            let detail = format!("found unit {unit}, expected one of {}", self.units());
            return Err(Error::new(ErrorKind::Internal, detail));
        }
        if let Layout::RowGroups { table } = &self.layout {
            let (name, table, start) = (self.name.clone(), table.clone(), (start.window, start.record));
            let reader = RowReader::new(name, table, unit, start, self.window, self.record_max, self.skip_damage)?;
            return Ok(UnitReader(Reader::Rows(Box::new(reader))));
        }
        let object = &self.object;
        let Some(separator) = self.separator.clone() else {
            let decoder = self.decoder(0..object.size(), |codec, object, _| codec.decoder(object))?;
            let reader = WholeReader::new(self.name.clone(), self.record_max, decoder, start.window, self.skip_damage);
            return Ok(UnitReader(Reader::Whole(reader)));
        };
        let mut plan = GridPlan {
            shard: self.name.clone(),
            separator,
            lines: self.format == Format::Jsonl,
            window: self.window,
            record_max: self.record_max,
            unit_start: 0,
            unit_end: None,
            shard_start: unit == 0,
            first: start.window,
            skip: self.skip_damage,
        };
        let (decoder, position): (Box<dyn Decode>, u64) = match &self.layout {
            Layout::Ranges { units } => {
                let size = object.size();
                let border = |unit: u64| (u128::from(unit) * u128::from(size) / u128::from(*units)) as u64;
                let (first, end) = (border(unit), border(unit + 1));
                plan.unit_start = first;
                plan.unit_end = Some(end);
                // Everything before the first window's grid line is skipped.
                let from = first.saturating_add(start.window.saturating_mul(self.window)).min(end);
                // The last record goes on behind: a request less for most.
                let read_end = end.saturating_add(RECORD_REST).min(size);
                (Box::new(Plain::new(reader(object, from..read_end, Reading::Along), first)), first)
            }
            Layout::Frames { table, units } => {
                let mut first = units[unit as usize];
                let end = units.get(unit as usize + 1).copied();
                let mut position = 0;
                if let Some(content) = table.content_start(first) {
                    plan.unit_start = content;
                    plan.unit_end = end.and_then(|end| table.content_start(end));
                    // The frame in which the window's grid line lies; a separator may lie right at the end of the one before.
                    let grid_line = content.saturating_add(start.window.saturating_mul(self.window));
                    first = table.frame_at(grid_line).unwrap_or(first).max(first);
                    position = table.content_start(first).unwrap_or(content);
                }
                let range = table.frames[first].offset..end.map_or(object.size(), |end| table.frames[end].offset);
                let table = table.clone();
                let whole = self.object.read_again();
                let decoder = self.decoder(range, move |_, object, again| {
                    // A table that was damaged on the way would make damage of what is whole.
                    if let Some(whole) = whole.as_ref().filter(|_| again)
                        && FrameTable::find(whole)?.as_ref() != Some(&*table)
                    {
                        let detail = "found that the places of frames were damaged on the way from the server; go on from \
                                      the last checkpoint";
                        return Err(Error::new(ErrorKind::Read, detail));
                    }
                    Ok(Box::new(Zstd::at_frame(object, &table, first, position, end)?))
                })?;
                (decoder, position)
            }
            Layout::Stream { table: Some(table) } => {
                let table = table.clone();
                let make = move |_: Codec, object, _| {
                    Ok(Box::new(Zstd::at_frame(object, &table, 0, 0, None)?) as Box<dyn Decode>)
                };
                (self.decoder(0..object.size(), make)?, 0)
            }
            Layout::Stream { table: None } | Layout::RowGroups { .. } => {
                (self.decoder(0..object.size(), |codec, object, _| codec.decoder(object))?, 0)
            }
        };
        Ok(UnitReader(Reader::Grid(GridReader::new(plan, decoder, position))))
    }

    /// The decoder that `make` makes over what reads `range`; of a remote object with a second look at what it finds damaged, for
    /// which `make` is told that it is one.
    fn decoder(
        &self,
        range: std::ops::Range<u64>,
        make: impl Fn(Codec, Arc<dyn Object>, bool) -> Result<Box<dyn Decode>> + Send + 'static,
    ) -> Result<Box<dyn Decode>> {
        let codec = self.codec;
        let decoder = make(codec, reader(&self.object, range.clone(), Reading::Along), false)?;
        match self.object.read_again() {
            Some(again) if codec != Codec::None => Ok(Box::new(Again::new(
                decoder,
                Box::new(move || make(codec, reader(&again, range, Reading::Along), true)),
            ))),
            _ => Ok(decoder),
        }
    }

    /// Index of the line or piece that starts at `byte`, an offset as [`Window::byte_start`] gives it, of `unit`.
    ///
    /// Cost: everything before is read. For error messages only.
    ///
    /// # Errors
    /// * `Read`, `Corrupt` - what lies before can't be read.
    /// * `Internal` - there is no such unit; the shard is Parquet, whose windows know their rows.
    pub fn record_index(&self, unit: u64, byte: u64) -> Result<u64> {
        if self.format == Format::Parquet {
            let detail = "the windows of a Parquet shard know their rows; there is no offset to count from";
            return Err(Error::new(ErrorKind::Internal, detail).in_shard(&self.name));
        }
        let count = || {
            let Some(separator) = &self.separator else { return Ok(0) };
            let object = self.object.clone();
            if let Layout::Frames { table, units } = &self.layout {
                let first = *units.get(unit as usize).ok_or_else(|| Error::new(ErrorKind::Internal, "no such unit"))?;
                let from_mark = table.content_size().is_none();
                let decoder =
                    Zstd::at_frame(reader(&object, 0..object.size(), Reading::Along), table, 0, 0, Some(first))?;
                return grid::count_before(separator, Box::new(decoder), byte, from_mark);
            }
            let decoder = self.codec.decoder(reader(&object, 0..object.size(), Reading::Along))?;
            grid::count_before(separator, decoder, byte, false)
        };
        count().map_err(|error: Error| error.in_shard(&self.name))
    }

    /// The offset in the uncompressed shard of `byte`, an offset as [`Window::byte_start`] gives it, of `unit`.
    ///
    /// Cost: none, but for units of frames that don't tell their sizes, before which everything is decompressed.
    ///
    /// # Errors
    /// As [`Shard::record_index`].
    pub fn byte_offset(&self, unit: u64, byte: u64) -> Result<u64> {
        let Layout::Frames { table, units } = &self.layout else { return Ok(byte) };
        if table.content_size().is_some() || unit == 0 {
            return Ok(byte);
        }
        let read = || {
            let first = *units.get(unit as usize).ok_or_else(|| Error::new(ErrorKind::Internal, "no such unit"))?;
            let object = reader(&self.object, 0..self.object.size(), Reading::Along);
            let mut decoder = Zstd::at_frame(object, table, 0, 0, Some(first))?;
            let mut buffer = vec![0; 64 << 10];
            loop {
                let count = decoder.read(&mut buffer)?;
                if let Some(start) = decoder.mark() {
                    return Ok(start.saturating_add(byte));
                }
                if count == 0 {
                    return Err(Error::new(
                        ErrorKind::Read,
                        format!("the shard ends before unit {unit}: the file changed"),
                    ));
                }
            }
        };
        read().map_err(|error: Error| error.in_shard(&self.name))
    }

    /// The document's text in a raw record, borrowed from it where possible; `scratch` holds it otherwise.
    ///
    /// # Errors
    /// * `BadRecord` - not UTF-8; a line that isn't JSON, or has no string in the field. The caller adds the place.
    pub fn text<'a>(&self, record: &'a [u8], scratch: &'a mut String) -> Result<&'a str> {
        match self.format {
            Format::Jsonl => self.field.text(record, scratch),
            _ => json::utf8(record),
        }
    }

    /// The whole of a record, as a JSON object; where it is text alone, the text under the name of `text_field`.
    ///
    /// # Errors
    /// * `BadRecord` - not UTF-8; a line that isn't a JSON object. The caller adds the place.
    pub fn object(&self, record: &[u8], text_field: &str) -> Result<serde_json::Map<String, serde_json::Value>> {
        let rows_of_several = matches!(&self.layout, Layout::RowGroups { table } if table.gives_json());
        if rows_of_several || self.format == Format::Jsonl {
            return serde_json::from_str(json::utf8(record)?)
                .map_err(|error| Error::new(ErrorKind::BadRecord, format!("expected a JSON object: {error}")));
        }
        Ok([(text_field.to_owned(), json::utf8(record)?.into())].into_iter().collect())
    }
}

/// Reads the windows of one unit, in order.
pub struct UnitReader(Reader);

enum Reader {
    Grid(GridReader),
    Whole(WholeReader),
    Rows(Box<RowReader>),
}

impl UnitReader {
    /// Puts the next window that has a record, and whose index is `wanted`, into `window`, whose buffers are used again; false
    /// at the end of the unit.
    ///
    /// `wanted` is asked once an index, in rising order. After an error each call gives it again.
    ///
    /// # Errors
    /// * `Corrupt`, `Read` - the bytes can't be had; every window before was delivered.
    /// * `Limit` - a record is too large, or decompressing needs too much memory.
    pub fn next_window(&mut self, window: &mut Window, wanted: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        match &mut self.0 {
            Reader::Grid(reader) => reader.next_window(window, wanted),
            Reader::Whole(reader) => reader.next_window(window, wanted),
            Reader::Rows(reader) => reader.next_window(window, wanted),
        }
    }

    /// The damage passed over since the last call.
    ///
    /// Holds: when a window was delivered, all damage of windows up to it has been met; which damage there is, and in which
    /// window, doesn't depend on where the reader started, as far as it lies behind that.
    pub fn take_losses(&mut self) -> Vec<Loss> {
        match &mut self.0 {
            Reader::Grid(reader) => reader.take_losses(),
            Reader::Whole(reader) => reader.take_losses(),
            Reader::Rows(reader) => reader.take_losses(),
        }
    }

    /// Index of the next window that can still be delivered.
    pub fn position(&self) -> u64 {
        match &self.0 {
            Reader::Grid(reader) => reader.position(),
            Reader::Whole(reader) => reader.position(),
            Reader::Rows(reader) => reader.position(),
        }
    }
}

/// What the format is, where the options leave it open.
fn resolve(object: &Arc<dyn Object>, name: &str, codec: Codec, options: &ShardOptions) -> Result<Format> {
    if options.format == Format::Parquet {
        return Ok(Format::Parquet);
    }
    let head = head(object, codec);
    if let Err(error) = &head
        && !matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Limit)
    {
        // Nothing is told by what couldn't be read; all else is said by who reads up to there.
        return Err(error.clone());
    }
    let format = match options.format {
        Format::Auto if codec == Codec::None && head.as_ref().is_ok_and(|head| head.starts_with(rows::MAGIC)) => {
            return Ok(Format::Parquet);
        }
        Format::Auto => match by_name(name) {
            Some(Format::Parquet) => return Ok(Format::Parquet),
            Some(format) => format,
            // An empty shard has no records in any format.
            None => match head.as_ref().map_err(Error::clone)?.iter().find(|byte| !byte.is_ascii_whitespace()) {
                Some(b'{') | None => Format::Jsonl,
                Some(_) => {
                    let detail = "the format is told by neither name nor content, expected `format` to be jsonl, text or parquet";
                    return Err(Error::new(ErrorKind::Config, detail));
                }
            },
        },
        format => format,
    };
    if let Ok([0xff, 0xfe, ..] | [0xfe, 0xff, ..]) = head.as_deref() {
        return Err(Error::new(ErrorKind::Corrupt, "found the byte order mark of UTF-16, expected UTF-8"));
    }
    Ok(format)
}

/// The first uncompressed bytes, without a byte order mark of UTF-8.
fn head(object: &Arc<dyn Object>, codec: Codec) -> Result<Vec<u8>> {
    let mut decoder = codec.decoder(object.clone())?;
    let mut head = vec![0; 4096];
    let mut filled = 0;
    while filled < head.len() {
        match decoder.read(&mut head[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if filled == 0 => return Err(error),
            // What is damaged is said by who reads up to there.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Limit) => break,
            Err(error) => return Err(error),
        }
    }
    head.truncate(filled);
    if head.starts_with(b"\xef\xbb\xbf") {
        head.drain(..3);
    }
    Ok(head)
}

/// What a shard's name says of its format, the ending of a compression left out. `Auto` goes by it first, then by content.
fn by_name(name: &str) -> Option<Format> {
    let name = name.to_ascii_lowercase();
    let name = [".gz", ".gzip", ".zst", ".zstd", ".xz", ".bz2", ".lz4"]
        .iter()
        .find_map(|ending| name.strip_suffix(ending))
        .unwrap_or(&name);
    match name.rsplit_once('.')?.1 {
        "jsonl" | "json" | "ndjson" => Some(Format::Jsonl),
        "txt" | "md" => Some(Format::Text),
        "parquet" => Some(Format::Parquet),
        _ => None,
    }
}

impl Format {
    /// The format of a shard of this name, as far as it is known before the shard is opened.
    pub fn of_name(self, name: &str) -> Option<Format> {
        match self {
            Format::Auto => by_name(name),
            format => Some(format),
        }
    }
}

/// What a shard's name says of its compression, as [`Shard::compression`] puts it. Reading goes by the content instead.
pub fn compression_by_name(name: &str) -> &'static str {
    let ending = name.rsplit_once('.').map_or(String::new(), |(_, ending)| ending.to_ascii_lowercase());
    match ending.as_str() {
        "gz" | "gzip" => "gzip",
        "zst" | "zstd" => "zstd",
        "xz" => "xz",
        "bz2" => "bzip2",
        "lz4" => "lz4",
        _ => "none",
    }
}

#[cfg(test)]
mod tests;
