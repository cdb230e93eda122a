//! A lane's way through a source: window after window, over units, shards and epochs.
//!
//! Comes in: a place to start from. Goes out: [`LoadedWindow`]s in the lane's order, their documents shuffled.
//! Holds: the sequence depends on plan, lane and place only, not on who asks or when. Does not know: tokens, threads.
//!
//! Damage that is passed over (`errors.bad_record = "skip"`) counts once, for the lane whose window it lies in, whether or
//! not a record is left of that window; a shard that can't be opened counts for the lane of its first window. It goes
//! with the lane's first window at or behind the damage, so a state that stands in a window has counted all damage up to
//! that window, and a resume there counts what comes later only.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::buffers::Buffers;
use super::streams::StreamPool;
use crate::chat::{Chat, Clock, EncodedRow};
use crate::config::BadRecord;
use crate::document::{EncodedDocument, EncodedDocuments, Loss, RecordRange, Window, WindowPlace};
use crate::error::{Error, ErrorKind, Result};
use crate::packing::Cursor;
use crate::plan::{Plan, PlannedSource};
use crate::shard::{Format, Shard, Start, UnitReader, compression_by_name};
use crate::source::Share;
use crate::state::Checkpoint;
use crate::storage::Expected;
use crate::tokenizer::Tokenizer;

/// Bad records whose places one piece keeps.
const BAD_RECORDS_KEPT: usize = 8;

/// What every stage of a run needs: the plan, the tokenizer, the shards that are open.
pub(crate) struct Context {
    pub plan: Arc<Plan>,
    pub tokenizer: Arc<Tokenizer>,
    pub buffers: Arc<Buffers>,
    /// What turns records into tokens, of sources that hold conversations.
    pub chats: Vec<Option<Chat>>,
    /// Whether each source has remote shards.
    pub remote: Vec<bool>,
    /// Open shards by source, stage and number, for as long as a lane holds them: a stage cuts a shard its own way.
    shards: Mutex<BTreeMap<(usize, usize, u64), ShardSlot>>,
}

/// An open shard; held while it is being opened.
type ShardSlot = Arc<Mutex<Weak<Shard>>>;

/// Whether a shard is open, or being opened. Only who holds the table may ask.
fn is_in_use(slot: &ShardSlot) -> bool {
    Arc::strong_count(slot) > 1 || slot.lock().unwrap_or_else(PoisonError::into_inner).strong_count() > 0
}

impl Context {
    /// What every stage needs; chat templates see the time `now`.
    ///
    /// # Errors
    /// `Config` - a chat template can't be used.
    pub fn new(plan: Arc<Plan>, tokenizer: Arc<Tokenizer>, now: Clock) -> Result<Self> {
        let bytes_max = (plan.config.runtime.memory.0 / 64) as usize;
        let chats = plan.sources.iter().map(|source| source.chat(&tokenizer, now)).collect::<Result<_>>()?;
        let remote = plan.sources.iter().map(PlannedSource::is_remote).collect();
        let buffers = Arc::new(Buffers::new(bytes_max));
        Ok(Context { plan, tokenizer, buffers, chats, remote, shards: Mutex::default() })
    }

    /// The shard as the epoch's stage cuts it, opened unless some lane has it open; a lane that comes while it is being opened
    /// waits for that, so that what a remote shard is read for is read once.
    pub fn open(&self, source: usize, epoch: u32, shard: u64) -> Result<Arc<Shard>> {
        let stage = self.plan.sources[source].stage_at(epoch);
        let slot = {
            let mut shards = self.shards();
            shards.retain(|_, slot| is_in_use(slot));
            shards.entry((source, stage, shard)).or_default().clone()
        };
        // Who panicked here has left it as it was.
        let mut open = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = open.upgrade() {
            return Ok(open);
        }
        let opened = Arc::new(self.plan.open_shard_in(source, shard, stage)?);
        *open = Arc::downgrade(&opened);
        Ok(opened)
    }

    fn shards(&self) -> MutexGuard<'_, BTreeMap<(usize, usize, u64), ShardSlot>> {
        self.shards.lock().expect("no panic happens while the table is held")
    }

    /// Tells the store which shards the lane will open after `share`, but for those that some lane has open.
    fn expect_next(&self, source: usize, lane: u32, share: &Share) {
        let planned = &self.plan.sources[source];
        let stage = planned.stage_at(share.epoch);
        next_shards(planned, lane, (share.epoch, share.walk + 1), &mut |shard| {
            if !self.shards().get(&(source, stage, shard)).is_some_and(is_in_use) {
                let entry = &planned.manifest.shards[shard as usize];
                self.plan.store.expect(&entry.location, entry.size, &entry.version, to_open(planned, &entry.name));
            }
        });
    }

    /// Whether a shard that fails to open so is passed over: its content is damaged, or not what the source is said to hold.
    fn passes_over_shard(&self, error: &Error) -> bool {
        let skip = self.plan.config.errors.bad_record == BadRecord::Skip;
        skip && matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Config)
    }
}

/// Small shards that a lane has on their way, and their bytes, at most.
const NEXT_SHARDS: u64 = 16;
const NEXT_BYTES: u64 = 4 << 20;

/// Calls `each` with the shards that a lane will open from a place of its walk on, as far as it is worth fetching ahead.
fn next_shards(source: &PlannedSource, lane: u32, (epoch, walk): (u32, u64), each: &mut dyn FnMut(u64)) {
    let mut bytes = 0;
    for walk in walk..walk + NEXT_SHARDS {
        let Some(share) = source.dealing_at(epoch).share(lane, epoch, walk) else { break };
        each(share.shard);
        bytes += source.manifest.shards[share.shard as usize].size;
        if bytes > NEXT_BYTES {
            break;
        }
    }
}

/// What of a shard is read when it is opened.
fn to_open(source: &PlannedSource, name: &str) -> Expected {
    match source.options.format.of_name(name) {
        Some(Format::Parquet) => Expected::Ends,
        _ => Expected::Beginning,
    }
}

/// Starts to fetch what the lanes of a rank will read first, where that is remote; the pipeline that is made next finds it on its
/// way. To be called before the tokenizer is loaded, which takes a while. Does nothing that has to be waited for.
pub fn read_ahead(plan: &Plan, rank: u32, world_size: u32, from: Option<&Checkpoint>) {
    let Ok(lanes) = plan.lanes_of(rank, world_size) else { return };
    plan.store.expect_lanes(lanes.len() as u32, plan.config.lanes);
    let sources: Vec<&PlannedSource> = plan.sources.iter().filter(|s| s.weight > 0 && s.is_remote()).collect();
    for lane in lanes {
        for source in &sources {
            let states = from.iter().flat_map(|from| &from.cursors).filter(|state| state.lane == lane);
            let place =
                states.filter_map(|state| state.sources.get(source.name())).map(|state| state.cursor.place).next();
            let place = place.unwrap_or_default();
            next_shards(source, lane, (place.epoch, place.walk), &mut |shard| {
                let entry = &source.manifest.shards[shard as usize];
                // All of a shard is wanted neither of a table with other columns, nor from somewhere in the middle on.
                let text = source.options.format.of_name(&entry.name).is_some_and(|format| format != Format::Parquet);
                let wanted = match compression_by_name(&entry.name) {
                    _ if !text || from.is_some() => to_open(source, &entry.name),
                    // Its frames have to be found.
                    "zstd" => Expected::AllToOpen,
                    _ => Expected::All,
                };
                plan.store.expect(&entry.location, entry.size, &entry.version, wanted);
            });
        }
    }
}

/// A window with its documents in delivery order.
pub(crate) struct LoadedWindow {
    /// The source's number in the plan.
    source: usize,
    pub lane: u32,
    pub place: WindowPlace,
    pub shard: Arc<Shard>,
    /// The unit's number in the shard.
    pub unit: u64,
    pub window: Window,
    /// The records of `window`, in delivery order.
    pub order: Vec<RecordRange>,
    /// Documents that are not wanted because they were delivered.
    pub skip: usize,
    /// Damage that was passed over since the window before.
    pub lost: Vec<Error>,
    /// Where the buffers go when they are spent.
    buffers: Arc<Buffers>,
}

impl Drop for LoadedWindow {
    fn drop(&mut self) {
        self.buffers.spent_window(std::mem::take(&mut self.window), std::mem::take(&mut self.order));
    }
}

impl LoadedWindow {
    /// Cuts the wanted documents into runs of at least `bytes` bytes of records, the last one of what is left.
    pub fn pieces(&self, bytes: usize) -> Vec<(Range<usize>, usize)> {
        let mut pieces = Vec::new();
        let mut start = self.skip;
        let mut size = 0;
        for i in self.skip..self.order.len() {
            size += self.order[i].len as usize;
            if size >= bytes || i + 1 == self.order.len() {
                pieces.push((start..i + 1, size));
                start = i + 1;
                size = 0;
            }
        }
        pieces
    }

    /// Tokenizes the documents of `range`; a bad record ends it, or is passed over, as the config says.
    pub fn encode(&self, context: &Context, range: Range<usize>, scratch: &mut String) -> EncodedDocuments {
        let records = &self.order[range.clone()];
        let size: usize = records.iter().map(|record| record.len as usize).sum();
        let mut encoded = EncodedDocuments { place: self.place, ..context.buffers.piece() };
        if range.start == self.skip {
            encoded.lost.clone_from(&self.lost);
        }
        encoded.ids.reserve(size / 3 + 2 * records.len());
        encoded.documents.reserve(records.len());
        for (record, index) in records.iter().zip(range) {
            if let Some(chat) = &context.chats[self.source] {
                let rows = self.json(record, context).and_then(|json| chat.encode(&context.tokenizer, &json));
                match rows {
                    Ok(rows) => push_rows(&mut encoded, index as u32, rows),
                    Err(error) => {
                        if !self.pass_bad(error, record, index as u32, context, &mut encoded) {
                            break;
                        }
                    }
                }
                continue;
            }
            let text = if record.null {
                let field = &context.plan.sources[self.source].options.text_field;
                Err(Error::new(ErrorKind::BadRecord, format!("{field:?} is null, expected a string")))
            } else {
                self.shard.text(record.of(&self.window.bytes), scratch)
            };
            let before = encoded.ids.len();
            let result = text.and_then(|text| {
                context.tokenizer.encode_document(text, &mut encoded.ids)?;
                Ok(text.len())
            });
            let mut document = EncodedDocument { index: index as u32, ..EncodedDocument::default() };
            match result {
                Ok(text_bytes) => document.text_bytes = text_bytes as u32,
                Err(error) => {
                    encoded.ids.truncate(before);
                    if !self.pass_bad(error, record, index as u32, context, &mut encoded) {
                        break;
                    }
                    continue;
                }
            }
            document.end = encoded.ids.len() as u32;
            encoded.documents.push(document);
        }
        encoded
    }

    /// Passes over a bad record, if the config allows it; else it is what stops the piece.
    fn pass_bad(
        &self,
        error: Error,
        record: &RecordRange,
        index: u32,
        context: &Context,
        encoded: &mut EncodedDocuments,
    ) -> bool {
        let error = self.locate(error, record);
        let skip = context.plan.config.errors.bad_record == BadRecord::Skip;
        if !skip || error.kind() != ErrorKind::BadRecord {
            encoded.error = Some(error);
            return false;
        }
        if encoded.bad_records.len() < BAD_RECORDS_KEPT {
            encoded.bad_records.push(error);
        }
        let (end, untrained_end) = (encoded.ids.len() as u32, encoded.untrained.len() as u32);
        let document = EncodedDocument { index, end, untrained_end, skipped: true, ..EncodedDocument::default() };
        encoded.documents.push(document);
        true
    }

    /// The record as a JSON object; where it is text alone, the text under the name of `text_field`.
    pub fn json(&self, record: &RecordRange, context: &Context) -> Result<serde_json::Map<String, serde_json::Value>> {
        let field = &context.plan.sources[self.source].options.text_field;
        if record.null {
            return Err(Error::new(ErrorKind::BadRecord, format!("{field:?} is null, expected a string")));
        }
        self.shard.object(record.of(&self.window.bytes), field)
    }

    /// Adds shard, byte and record to an error about `record`.
    fn locate(&self, error: Error, record: &RecordRange) -> Error {
        let error = error.in_shard(self.shard.name());
        let known = self.window.first_record.map(|first| first + u64::from(record.ordinal));
        if self.shard.format() == Format::Parquet {
            return match known {
                Some(row) => error.at_record(row),
                None => error,
            };
        }
        let byte = self.window.byte_start + u64::from(record.start);
        // Counting the records before is slow, so it is done for errors alone; where it fails, the byte has to do.
        match known.map_or_else(|| self.shard.record_index(self.unit, byte).ok(), Some) {
            Some(index) => error.at_record(index).at_byte(byte),
            None => error.at_byte(byte),
        }
    }
}

/// Appends the rows of a record.
fn push_rows(encoded: &mut EncodedDocuments, index: u32, rows: Vec<EncodedRow>) {
    let count = rows.len();
    let mut end = |row: Option<EncodedRow>, continues: bool| {
        let untrained = row.is_none();
        let row = row.unwrap_or_default();
        encoded.ids.extend_from_slice(&row.ids);
        encoded.untrained.extend_from_slice(&row.untrained);
        encoded.documents.push(EncodedDocument {
            index,
            end: encoded.ids.len() as u32,
            text_bytes: row.text_bytes,
            untrained_end: encoded.untrained.len() as u32,
            untrained,
            continues,
            ..EncodedDocument::default()
        });
    };
    if count == 0 {
        end(None, false);
    }
    for (number, row) in rows.into_iter().enumerate() {
        end((row.trained() > 0).then_some(row), number + 1 < count);
    }
}

/// Adds the record in which damage lies to an error that names the byte. Counting takes as long as reading did.
pub(super) fn locate_damage(error: Error, shard: &Shard, unit: u64) -> Error {
    match (error.kind(), error.place().record, error.place().byte) {
        (ErrorKind::Corrupt, None, Some(byte)) => match shard.record_index(unit, byte) {
            Ok(record) => error.at_record(record),
            Err(_) => error,
        },
        _ => error,
    }
}

/// Reads a lane's windows of one source.
pub(crate) struct LaneReader {
    source: usize,
    lane: u32,
    /// The next window to read.
    place: WindowPlace,
    /// Documents of that window that were delivered, and whether one more is partly delivered.
    delivered: (u32, bool),
    open: Option<OpenShard>,
    /// Whether this epoch has given a record.
    has_records: bool,
    /// Whether the last shard was one that is read in order.
    pub on_stream: bool,
    /// The shard being read, as an index in the manifest: for who watches.
    pub reading: Arc<AtomicU64>,
    /// Damage that is to go with the next window, or with the end.
    lost: Vec<Error>,
    /// Damage in windows of the unit beyond the last one delivered.
    losses: Vec<Loss>,
    /// Damage up to this window of the unit was counted before the state was taken.
    counted_to: Option<u64>,
}

/// No shard is being read.
const NOTHING: u64 = u64::MAX;

struct OpenShard {
    share: Share,
    shard: Arc<Shard>,
    /// The unit being read and its number; none at a unit's border, and none where the pool reads.
    unit: Option<(u64, UnitReader)>,
}

impl LaneReader {
    /// A reader of what comes after `cursor`.
    pub fn new(source: usize, lane: u32, cursor: &Cursor) -> Self {
        let fresh = *cursor == Cursor { totals: cursor.totals, ..Cursor::default() };
        LaneReader {
            source,
            lane,
            place: cursor.place,
            delivered: (cursor.document, cursor.token > 0),
            open: None,
            has_records: !fresh,
            on_stream: true,
            reading: Arc::new(AtomicU64::new(NOTHING)),
            lost: Vec::new(),
            losses: Vec::new(),
            counted_to: (!fresh).then_some(cursor.place.window),
        }
    }

    /// What the next window's decoder may be shared with: `(source, stage, group)`.
    pub fn group(&self, plan: &Plan) -> (usize, usize, u32) {
        let source = &plan.sources[self.source];
        let stage = source.stage_at(self.place.epoch);
        (self.source, stage, source.stage(stage).group(self.lane))
    }

    /// The lane's number.
    pub fn lane(&self) -> u32 {
        self.lane
    }

    /// The source's number in the plan.
    pub fn source(&self) -> usize {
        self.source
    }

    /// After the last window: the damage passed over since.
    pub fn take_lost(&mut self) -> Vec<Error> {
        std::mem::take(&mut self.lost)
    }

    /// The shard that the next call of [`LaneReader::next`] begins with.
    pub fn next_shard_index(&self, plan: &Plan) -> Option<u64> {
        let dealing = plan.sources[self.source].dealing_at(self.place.epoch);
        let share = dealing.share(self.lane, self.place.epoch, self.place.walk)?;
        Some(share.shard)
    }

    /// The next window, or `None` after the last epoch. Shards that are read in order come from `streams` where given,
    /// else from a decoder of this reader's own.
    ///
    /// # Errors
    /// What reading gives; `TooFewRecords` when a whole epoch gave this lane no record; `StateMismatch` when the place
    /// it started from isn't there.
    pub fn next(&mut self, context: &Context, streams: Option<&StreamPool>) -> Result<Option<LoadedWindow>> {
        let result = self.advance(context, streams);
        self.reading.store(NOTHING, Ordering::Relaxed);
        result.map_err(|error| match error.kind() {
            ErrorKind::Internal => error.and(&format!("lane {}", self.lane)),
            _ => error,
        })
    }

    fn advance(&mut self, context: &Context, streams: Option<&StreamPool>) -> Result<Option<LoadedWindow>> {
        let planned = &context.plan.sources[self.source];
        let max_epochs = planned.options.max_epochs;
        loop {
            if max_epochs > 0 && self.place.epoch >= max_epochs {
                return Ok(None);
            }
            if self.open.is_none() {
                match planned.dealing_at(self.place.epoch).share(self.lane, self.place.epoch, self.place.walk) {
                    Some(share) => {
                        self.reading.store(share.shard, Ordering::Relaxed);
                        let shard = match context.open(self.source, share.epoch, share.shard) {
                            Ok(shard) => shard,
                            Err(error) if context.passes_over_shard(&error) => {
                                if share.has_window(0) {
                                    self.lost.push(error.and("the shard is passed over"));
                                }
                                self.next_shard()?;
                                continue;
                            }
                            Err(error) => return Err(error),
                        };
                        self.on_stream = shard.is_stream();
                        if context.remote[self.source] {
                            context.expect_next(self.source, self.lane, &share);
                        }
                        self.open = Some(OpenShard { share, shard, unit: None });
                    }
                    None => {
                        self.end_epoch(context)?;
                        continue;
                    }
                }
            }
            let open = self.open.as_mut().expect("opened above");
            self.reading.store(open.share.shard, Ordering::Relaxed);
            let (mut window, order) = context.buffers.window();
            let start = Start { window: self.place.window, record: self.place.row };
            let (found, unit) = match (open.shard.is_stream(), streams) {
                (true, Some(streams)) => {
                    let (found, losses) =
                        streams.take(self.source, self.lane, &open.share, &open.shard, start, &mut window)?;
                    self.losses.extend(losses);
                    (found, 0)
                }
                (true, None) => {
                    let (_, reader) = match &mut open.unit {
                        Some(unit) => unit,
                        none => none.insert((0, open.shard.read_unit(0, start)?)),
                    };
                    let found = reader
                        .next_window(&mut window, &mut |w| open.share.has_window(w))
                        .map_err(|error| locate_damage(error, &open.shard, 0))?;
                    let losses = reader.take_losses().into_iter();
                    self.losses.extend(losses.filter(|loss| open.share.has_window(loss.window)));
                    (found, 0)
                }
                (false, _) => {
                    if open.unit.is_none() {
                        let dealing = planned.dealing_at(open.share.epoch);
                        let unit = dealing.unit(&open.share, open.shard.units(), self.place.unit);
                        open.unit = unit.map(|unit| Ok((unit, open.shard.read_unit(unit, start)?))).transpose()?;
                    }
                    match &mut open.unit {
                        Some((unit, reader)) => {
                            let found = reader
                                .next_window(&mut window, &mut |_| true)
                                .map_err(|error| locate_damage(error, &open.shard, *unit))?;
                            self.losses.extend(reader.take_losses());
                            (found, *unit)
                        }
                        None => {
                            // The lane's share of this shard is at its end.
                            self.next_shard()?;
                            continue;
                        }
                    }
                }
            };
            if let Some(counted_to) = self.counted_to {
                self.losses.retain(|loss| loss.window > counted_to);
            }
            if found {
                return self.loaded(context, window, order, unit).map(Some);
            }
            context.buffers.spent_window(window, order);
            if open.shard.is_stream() {
                self.next_shard()?;
            } else {
                open.unit = None;
                self.end_unit();
                self.expect_place_found()?;
                self.place = WindowPlace { unit: self.place.unit + 1, window: 0, row: None, byte: 0, ..self.place };
            }
        }
    }

    fn loaded(
        &mut self,
        context: &Context,
        window: Window,
        mut order: Vec<RecordRange>,
        unit: u64,
    ) -> Result<LoadedWindow> {
        let open = self.open.as_ref().expect("a window comes out of an open shard");
        let row = if open.shard.format() == Format::Parquet { window.first_record } else { None };
        let place = WindowPlace { window: window.index, row, byte: window.byte_start, ..self.place };
        let (skip, partly) = self.delivered;
        if window.index != self.place.window {
            self.expect_place_found()?;
        }
        if skip as usize + usize::from(partly) > window.records.len() {
            return Err(Error::new(
                ErrorKind::StateMismatch,
                format!(
                    "the open window has {} records, expected more than {skip}: the data changed",
                    window.records.len()
                ),
            )
            .in_shard(open.shard.name())
            .at_byte(window.byte_start));
        }
        self.delivered = (0, false);
        self.has_records = true;
        let index = window.index;
        self.lost.extend(self.losses.extract_if(.., |loss| loss.window <= index).map(|loss| loss.error));
        order.extend_from_slice(&window.records);
        let dealing = context.plan.sources[self.source].dealing_at(open.share.epoch);
        dealing.shuffle_window(&open.share, unit, window.index, &mut order);
        let loaded = LoadedWindow {
            source: self.source,
            lane: self.lane,
            place,
            shard: open.shard.clone(),
            unit,
            window,
            order,
            skip: skip as usize,
            lost: std::mem::take(&mut self.lost),
            buffers: context.buffers.clone(),
        };
        self.place =
            WindowPlace { window: place.window + 1, row: row.map(|row| row + loaded.order.len() as u64), ..place };
        Ok(loaded)
    }

    /// After the window that a resume starts from was passed over: it must have been a mere position.
    fn expect_place_found(&self) -> Result<()> {
        if self.delivered == (0, false) {
            return Ok(());
        }
        let detail = format!("there is no window {} where the checkpoint stands: the data changed", self.place.window);
        let error = Error::new(ErrorKind::StateMismatch, detail);
        Err(match &self.open {
            Some(open) => error.in_shard(open.shard.name()).at_byte(self.place.byte),
            None => error,
        })
    }

    /// What is left of the unit's damage goes with whatever comes next.
    fn end_unit(&mut self) {
        self.lost.extend(self.losses.drain(..).map(|loss| loss.error));
        self.counted_to = None;
    }

    fn next_shard(&mut self) -> Result<()> {
        self.end_unit();
        self.expect_place_found()?;
        self.open = None;
        self.place = WindowPlace { epoch: self.place.epoch, walk: self.place.walk + 1, ..WindowPlace::default() };
        Ok(())
    }

    fn end_epoch(&mut self, context: &Context) -> Result<()> {
        if !std::mem::take(&mut self.has_records) {
            let plan = &context.plan;
            return Err(Error::new(
                ErrorKind::TooFewRecords,
                format!(
                    "epoch {} of source {:?} ({} shards, {} bytes) has no record for lane {}, expected at least one for \
                     each of {} lanes: lower `lanes`",
                    self.place.epoch,
                    plan.sources[self.source].name(),
                    plan.sources[self.source].manifest.shards.len(),
                    plan.sources[self.source].manifest.bytes(),
                    self.lane,
                    plan.config.lanes,
                ),
            ));
        }
        self.place = WindowPlace { epoch: self.place.epoch + 1, ..WindowPlace::default() };
        Ok(())
    }
}
