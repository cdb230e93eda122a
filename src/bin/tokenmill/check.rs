//! `tokenmill check`: what the chat templates and masks of a config make of its first rows.
//!
//! Reads each source of conversations from its first shard on, renders and tokenizes rows, and counts; trains nothing, keeps nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use tokenmill::chat::{Chat, Clock, EncodedRow, TurnEnd};
use tokenmill::config::{BadRecord, Config};
use tokenmill::document::Window;
use tokenmill::error::{Error, ErrorKind, Result};
use tokenmill::packing::{Overflow, Strategy, fit};
use tokenmill::plan::{Plan, PlannedSource};
use tokenmill::shard::Start;
use tokenmill::tokenizer::Tokenizer;

use crate::args::CheckArguments;
use crate::table::{Table, count};

/// Bad rows whose errors are shown.
const ERRORS_SHOWN: usize = 5;

pub fn check(arguments: &CheckArguments) -> Result<()> {
    let config = Config::load(&arguments.config.config, &arguments.config.overrides)?;
    let plan = Plan::new(&config)?;
    let tokenizer = Tokenizer::load(&config.tokenizer_options())?;
    let now = Clock::now();
    let mut found = 0;
    let mut bad = 0;
    let create = |path: &PathBuf| File::create(path).map_err(|error| failed(path, error));
    let mut out = arguments.out.as_ref().map(create).transpose()?.map(BufWriter::new);
    for (index, source) in plan.sources.iter().enumerate() {
        let Some(chat) = source.chat(&tokenizer, now)? else { continue };
        found += 1;
        let mut write = |line: Json| match (&mut out, &arguments.out) {
            (Some(out), Some(path)) => writeln!(out, "{line}").map_err(|error| failed(path, error)),
            _ => Ok(()),
        };
        let report = Report::read(&plan, index, &chat, &tokenizer, arguments.rows, &mut write)?;
        bad += report.bad;
        crate::print_stdout(&report.text(&plan, source, &chat, &tokenizer))?;
    }
    if let (Some(mut out), Some(path)) = (out, &arguments.out) {
        out.flush().map_err(|error| failed(path, error))?;
    }
    if found == 0 {
        return Err(Error::new(ErrorKind::Config, "no source has [source.chat], expected at least one"));
    }
    if bad > 0 && config.errors.bad_record == BadRecord::Fail {
        return Err(Error::new(
            ErrorKind::BadRecord,
            format!("{bad} records are bad, and errors.bad_record is \"fail\""),
        ));
    }
    Ok(())
}

/// Times rendering, masking and tokenizing of each source of conversations on this thread: the best of three passes over up to
/// 20 000 records.
pub fn bench(plan: &Plan, tokenizer: &Tokenizer, as_json: bool) -> Result<()> {
    for (index, source) in plan.sources.iter().enumerate() {
        let Some(chat) = source.chat(tokenizer, Clock::from_unix(0))? else { continue };
        let mut best: Option<(f64, Report)> = None;
        for _ in 0..3 {
            let begin = std::time::Instant::now();
            let report = Report::read(plan, index, &chat, tokenizer, 20_000, &mut |_| Ok(()))?;
            let seconds = begin.elapsed().as_secs_f64().max(1e-9);
            if best.as_ref().is_none_or(|(least, _)| seconds < *least) {
                best = Some((seconds, report));
            }
        }
        let (seconds, report) = best.expect("there were three passes");
        let (rows, tokens) = (report.rows as f64 / seconds, report.tokens as f64 / seconds);
        let line = match as_json {
            true => format!(
                "{}\n",
                json!({"source": source.name(), "rows": report.rows, "rows_per_second": rows, "tokens_per_second": tokens})
            ),
            false => format!(
                "source {}: {} rows, {} rows/s, {} tokens/s on one thread (read, render, mask, tokenize)\n",
                source.name(),
                count(report.rows),
                count(rows as u64),
                count(tokens as u64)
            ),
        };
        crate::print_stdout(&line)?;
    }
    Ok(())
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Write, format!("can't write {}", path.display())).because(error)
}

/// A row as JSON.
fn line(record: u64, row: &EncodedRow) -> Json {
    json!({"record": record, "input_ids": row.ids, "labels": row.labels()})
}

/// What one source's rows are.
#[derive(Default)]
struct Report {
    records: u64,
    rows: u64,
    bad: u64,
    errors: Vec<Error>,
    methods: BTreeMap<String, u64>,
    inputs: BTreeMap<String, u64>,
    untrained: u64,
    longer: u64,
    cut_off: u64,
    straddling: u64,
    rows_straddling: u64,
    control: u64,
    ends: [u64; 3],
    double_bos: u64,
    tokens: u64,
    trained: u64,
    lengths: Vec<usize>,
}

impl Report {
    fn read(
        plan: &Plan,
        source: usize,
        chat: &Chat,
        tokenizer: &Tokenizer,
        most: u64,
        write: &mut dyn FnMut(Json) -> Result<()>,
    ) -> Result<Report> {
        let mut report = Report::default();
        let shards = plan.sources[source].manifest.shards.len() as u64;
        let field = plan.sources[source].options.text_field.as_str();
        let mut window = Window::default();
        for number in 0..shards {
            let shard = plan.open_shard(source, number)?;
            for unit in 0..shard.units() {
                let mut reader = shard.read_unit(unit, Start::default())?;
                while reader.next_window(&mut window, &mut |_| true)? {
                    for record in &window.records {
                        if report.records == most {
                            return Ok(report);
                        }
                        report.records += 1;
                        let json = shard.object(record.of(&window.bytes), field);
                        match json.and_then(|json| chat.encode(tokenizer, &json)) {
                            Ok(rows) => {
                                for row in &rows {
                                    report.add(row, plan);
                                    write(line(report.records - 1, row))?;
                                }
                            }
                            Err(error) if error.kind() == ErrorKind::BadRecord => {
                                report.bad += 1;
                                write(json!({"record": report.records - 1, "error": error.detail()}))?;
                                if report.errors.len() < ERRORS_SHOWN {
                                    let byte = window.byte_start + u64::from(record.start);
                                    report.errors.push(error.in_shard(shard.name()).at_byte(byte));
                                }
                            }
                            Err(error) => return Err(error),
                        }
                    }
                }
            }
        }
        Ok(report)
    }

    fn add(&mut self, row: &EncodedRow, plan: &Plan) {
        let facts = row.facts;
        self.rows += 1;
        let method = facts.method.map_or("none needed", |method| method.name());
        *self.methods.entry(method.to_owned()).or_default() += 1;
        *self.inputs.entry(format!("{:?}", facts.input).to_lowercase()).or_default() += 1;
        self.untrained += u64::from(row.trained() == 0);
        let block = plan.config.block_size;
        self.longer += u64::from(row.ids.len() > block as usize);
        let kept = row.untrained.iter().map(|range| range.end.min(block) - range.start.min(block)).sum::<u32>();
        self.cut_off += u64::from(row.trained() > 0 && row.ids.len() > block as usize && kept == block);
        self.straddling += u64::from(facts.straddling);
        self.rows_straddling += u64::from(facts.straddling > 0);
        self.control += u64::from(facts.control_in_content);
        for (count, end) in self.ends.iter_mut().zip([TurnEnd::Control, TurnEnd::Text, TurnEnd::Untrained]) {
            *count += u64::from(facts.end == Some(end));
        }
        self.double_bos += u64::from(facts.double_bos);
        self.tokens += row.ids.len() as u64;
        self.trained += row.trained() as u64;
        if row.trained() > 0 {
            self.lengths.push(row.ids.len());
        }
    }

    fn text(&self, plan: &Plan, source: &PlannedSource, chat: &Chat, tokenizer: &Tokenizer) -> String {
        let mut out = String::new();
        let counts = |counts: &BTreeMap<String, u64>| {
            counts.iter().map(|(name, n)| format!("{name} {}", count(*n))).collect::<Vec<_>>().join(", ")
        };
        let _ = writeln!(out, "source {}: {} records, {} rows", source.name(), count(self.records), count(self.rows));
        for finding in chat.probe(tokenizer) {
            let _ = writeln!(out, "  template: {finding}");
        }
        let block = plan.config.block_size as usize;
        let long = match chat.options().overflow() {
            _ if plan.config.packing.strategy == Strategy::Concat => "go on in the next block",
            Overflow::Truncate => "would be truncated",
            Overflow::Drop => "would be dropped",
            Overflow::Split => "would be split",
        };
        let mut table = Table::new(["", ""], &[0, 1]);
        let share = 100.0 * self.trained as f64 / (self.tokens as f64).max(1.0);
        table.row(["record formats", &counts(&self.inputs)]);
        table.row(["spans found by", &counts(&self.methods)]);
        table.row(["bad records", &count(self.bad)]);
        table.row(["rows with no trained token (dropped)", &count(self.untrained)]);
        table.row([&format!("rows longer than a block of {block} ({long})"), &count(self.longer)]);
        if plan.config.packing.strategy != Strategy::Concat && chat.options().overflow() == Overflow::Truncate {
            table.row(["of them without a trained token once truncated (dropped)", &count(self.cut_off)]);
        }
        table.row(["tokens", &count(self.tokens)]);
        table.row(["tokens trained", &format!("{} ({share:.1} %)", count(self.trained))]);
        let straddling = format!("{} in {} rows (trained)", count(self.straddling), count(self.rows_straddling));
        table.row(["tokens straddling a span's edge", &straddling]);
        let [control, text, untrained] = self.ends.map(count);
        let ends = format!("its token in {control} rows, text in {text}, NOT in {untrained}");
        table.row(["end of turn trained", &ends]);
        table.row(["rows with two BOS (one is left out)", &count(self.double_bos)]);
        table.row(["control tokens found in content (kept text)", &count(self.control)]);
        if plan.config.packing.strategy != Strategy::Concat {
            let overflow = chat.options().overflow();
            let parts = |&size: &usize| match overflow {
                Overflow::Drop if size > block => Vec::new(),
                Overflow::Split => (0..size).step_by(block).map(|start| block.min(size - start)).collect(),
                _ => vec![size.min(block)],
            };
            let sizes: Vec<usize> = self.lengths.iter().flat_map(parts).collect();
            let filled: usize = sizes.iter().sum();
            let blocks = fit(plan.config.packing.strategy, &sizes, block).len();
            let padding = 100.0 * (blocks * block - filled) as f64 / ((blocks * block) as f64).max(1.0);
            let expected = format!("{padding:.2} % of {} blocks", count(blocks as u64));
            table.row(["padding expected (of these rows alone)", &expected]);
        }
        out += &table.text("  ");
        out += &histogram(&self.lengths);
        for error in &self.errors {
            let _ = writeln!(out, "  bad: {error}");
        }
        out
    }
}

/// Rows by length, in powers of two.
fn histogram(lengths: &[usize]) -> String {
    let mut bins: BTreeMap<u32, u64> = BTreeMap::new();
    for &length in lengths {
        *bins.entry(length.max(1).ilog2()).or_default() += 1;
    }
    let most = bins.values().copied().max().unwrap_or(1);
    let mut out = String::from("  tokens in a row\n");
    for (bin, rows) in bins {
        let bar = "#".repeat((rows * 40).div_ceil(most) as usize);
        let _ = writeln!(out, "  {:>8} to {:>8}  {:>8}  {bar}", 1u64 << bin, (2u64 << bin) - 1, count(rows));
    }
    out
}
