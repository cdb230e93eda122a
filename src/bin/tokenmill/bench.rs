//! `tokenmill bench`: each stage alone, and the whole, on the same text.
//!
//! One run of the pipeline says which documents its first N MB are. Those are held in memory, and every round
//! measures each stage on them, one after the other, so what the machine does meanwhile hits all stages alike. Before
//! anything is timed the stages' ids, packed, are compared with the pipeline's blocks; in each round the counts (and for
//! the whole a checksum of all ids) must come out the same again.
//!
//! Engines remember words, so one that sees its text for the second time is up to three times as fast as in a run. So the
//! engine alone and the whole get a newly loaded tokenizer each time, and their clocks start after a quarter of the
//! text: words are then as well known as in a run, texts are not. For the whole that is also its steady state: what
//! it reads ahead is full when the clock starts, and when it stops. Files are in the page cache by then, so `read` is
//! decompression and copying.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokenmill::error::{Error, ErrorKind, Result};
use tokenmill::pipeline::{Pipeline, RunOptions, predict_memory};
use tokenmill::plan::Plan;
use tokenmill::tokenizer::{EngineChoice, Tokenizer};

use crate::args::BenchArguments;
use crate::run::load_config;
use crate::sample::{Calibration, Sample, add_ids, calibrate, differ, pack};
use crate::table::{Table, count, size};

/// Text of the comparison with the reference, in bytes: it is some ten times slower.
const REFERENCE_BYTES: u64 = 2_000_000;

#[derive(Serialize)]
struct Report {
    config: String,
    engine: String,
    engine_reason: String,
    /// Threads the machine offers this process.
    cores: usize,
    rounds: u32,
    text_bytes: u64,
    raw_bytes: u64,
    tokens: u64,
    documents: u64,
    blocks_checked: u64,
    stages: Vec<Figure>,
    /// The four stages one after the other, on one thread: from the medians.
    sum_text_bytes_per_second: f64,
    whole: Vec<Whole>,
    reference: Option<Reference>,
    bound_by: String,
    /// Text that the pipeline reads ahead, in bytes.
    ahead_bytes: u64,
    notes: Vec<String>,
}

/// Rates over the rounds.
#[derive(Serialize, Clone, Default)]
struct Rates {
    median: f64,
    least: f64,
    most: f64,
}

#[derive(Serialize)]
struct Figure {
    stage: &'static str,
    threads: u32,
    text_bytes_per_second: Rates,
    tokens_per_second: f64,
    /// Part of the four stages' time.
    share: f64,
}

#[derive(Serialize)]
struct Whole {
    threads: u32,
    text_bytes_per_second: Rates,
    tokens_per_second: f64,
    /// The engine alone on as many threads.
    engine_text_bytes_per_second: Rates,
    /// The median over the rounds of whole / engine alone, both of one round.
    of_engine: Rates,
}

#[derive(Serialize)]
struct Reference {
    engine: &'static str,
    text_bytes: u64,
    text_bytes_per_second: Rates,
    /// The chosen engine's rate of `tokenize`, divided by this.
    faster: f64,
}

pub fn bench(arguments: &BenchArguments) -> Result<()> {
    let mut config = load_config(&arguments.config, None)?;
    // What is measured is the middle of a run, not its end.
    config.source.iter_mut().for_each(|source| source.max_epochs = 0);
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = match (&arguments.threads, config.runtime.threads) {
        (Some(threads), _) => threads.0.clone(),
        (None, 0 | 1) if cores == 1 => vec![1],
        (None, 0) => vec![1, cores as u32],
        (None, 1) => vec![1],
        (None, configured) => vec![1, configured],
    };
    let note = |text: String| {
        if !arguments.json {
            eprintln!("{text}");
        }
    };
    let tokenizer = Arc::new(Tokenizer::load(&config.tokenizer_options())?);
    let plan = Arc::new(Plan::new(&config)?);
    if plan.sources.iter().any(|source| source.options.chat.is_some()) {
        return crate::check::bench(&plan, &tokenizer, arguments.json);
    }
    // Pieces of all strands come due together: a measurement shorter than what is read ahead catches one burst or none.
    let most_threads = threads.last().copied().unwrap_or(1);
    let ahead = predict_memory(&plan, 0, 1, most_threads)?.ahead;
    let enough = (4 * ahead).div_ceil(1_000_000);
    let megabytes = arguments.megabytes.unwrap_or(enough.clamp(64, 512)).clamp(1, 1 << 20);
    note(format!("collecting about {megabytes} MB of text"));
    let calibration = calibrate(&plan, &tokenizer, megabytes * 1_000_000)?;
    let sample = Sample::collect(&plan, &tokenizer, &calibration)?;
    let reference = match tokenizer.engine() {
        "fastokens" => {
            let mut options = config.tokenizer_options();
            options.engine = EngineChoice::Tokenizers;
            Some(Tokenizer::load(&options)?)
        }
        _ => None,
    };
    let reference =
        reference.map(|reference| Ok::<_, Error>((Tokenizer::load(&config.tokenizer_options())?, reference)));
    let reference = reference.transpose()?;
    let parts = sample.parts(arguments.repeats as usize + 1, REFERENCE_BYTES);
    let (first_part, parts) = parts.split_first().expect("there is one more than rounds");
    if let Some((engine, reference)) = &reference {
        compare(engine, reference, first_part)?;
    }
    let load = || Tokenizer::load(&config.tokenizer_options()).map(Arc::new);
    let (engine, engine_reason) = (tokenizer.engine().to_owned(), tokenizer.engine_reason().to_owned());
    drop(tokenizer);
    let before = cpu_ticks();
    let mut times =
        Times { engine: vec![Vec::new(); threads.len()], whole: vec![Vec::new(); threads.len()], ..Times::default() };
    for round in 0..arguments.repeats {
        note(format!("round {} of {}", round + 1, arguments.repeats));
        times.stages(&sample, config.block_size as usize)?;
        times.tokenize.push(times.engine_alone(1, &sample, &*load()?)?);
        for (index, &threads) in threads.iter().enumerate() {
            // By turns, so that neither always comes first.
            if round % 2 == 1 {
                times.whole(index, threads, &plan, load()?, &calibration)?;
            }
            let engine = match threads {
                1 => *times.tokenize.last().expect("measured above"),
                _ => times.engine_alone(threads, &sample, &*load()?)?,
            };
            times.engine[index].push(engine);
            if round % 2 == 0 {
                times.whole(index, threads, &plan, load()?, &calibration)?;
            }
        }
        if let Some((engine, reference)) = &reference {
            times.reference.push(compare(engine, reference, &parts[round as usize])?);
        }
    }
    let mut report = Report {
        config: arguments.config.config.display().to_string(),
        engine,
        engine_reason,
        cores,
        rounds: arguments.repeats,
        text_bytes: sample.text_bytes,
        raw_bytes: sample.raw_bytes,
        tokens: sample.tokens,
        documents: sample.documents,
        blocks_checked: sample.blocks_checked,
        stages: times.figures(&sample),
        sum_text_bytes_per_second: 0.0,
        whole: times.wholes(&threads),
        reference: reference.map(|_| times.reference_figures()),
        bound_by: String::new(),
        ahead_bytes: ahead,
        notes: Vec::new(),
    };
    if let (Some(before), Some(after)) = (before, cpu_ticks()) {
        let others = before.others_until(&after);
        if others > 0.1 {
            report.notes.push(format!(
                "other processes took {:.0} % of the machine meanwhile: figures are too low, those of several threads most",
                others * 100.0
            ));
        }
    }
    if megabytes < enough {
        report.notes.push(format!(
            "{megabytes} MB is little beside the {} that {} strands read ahead: figures of the whole are unsteady; use \
             --megabytes {enough}",
            size(ahead),
            plan.sources.len() * config.lanes as usize
        ));
    }
    let seconds: f64 = report.stages.iter().map(|stage| 1.0 / stage.text_bytes_per_second.median).sum();
    report.sum_text_bytes_per_second = 1.0 / seconds;
    report.bound_by = bound_by(&report);
    if arguments.json {
        let text = serde_json::to_string_pretty(&report).expect("a report is JSON");
        return crate::print_stdout(&format!("{text}\n"));
    }
    crate::print_stdout(&show(&report))
}

/// One measurement: seconds for so many bytes of text.
#[derive(Clone, Copy)]
struct Timed {
    seconds: f64,
    text_bytes: u64,
}

impl Timed {
    fn rate(&self) -> f64 {
        self.text_bytes as f64 / self.seconds
    }
}

/// The measurements of each round.
#[derive(Default)]
struct Times {
    read: Vec<Timed>,
    parse: Vec<Timed>,
    tokenize: Vec<Timed>,
    pack: Vec<Timed>,
    /// By number of threads.
    engine: Vec<Vec<Timed>>,
    /// By number of threads, with the tokens.
    whole: Vec<Vec<(Timed, u64)>>,
    reference: Vec<Timed>,
}

/// Runs `work` and checks its count.
fn timed(what: &str, sample: &Sample, expected: u64, work: impl FnOnce() -> Result<u64>) -> Result<Timed> {
    let begin = Instant::now();
    let found = work()?;
    let seconds = begin.elapsed().as_secs_f64();
    expect_same(what, found, expected)?;
    Ok(Timed { seconds, text_bytes: sample.text_bytes })
}

fn expect_same(what: &str, found: u64, expected: u64) -> Result<()> {
    if found != expected {
        return Err(differ(format!("{what} gave {found} in this round and {expected} before")));
    }
    Ok(())
}

impl Times {
    fn stages(&mut self, sample: &Sample, block_size: usize) -> Result<()> {
        self.read.push(timed("read", sample, sample.raw_bytes, || sample.read())?);
        self.parse.push(timed("parse", sample, sample.text_bytes, || sample.parse())?);
        let pieces = sample.pieces();
        self.pack.push(timed("pack", sample, sample.tokens, || pack(pieces, block_size))?);
        Ok(())
    }

    /// The engine alone; `tokenizer` has seen no text.
    fn engine_alone(&self, threads: u32, sample: &Sample, tokenizer: &Tokenizer) -> Result<Timed> {
        let tokenized = sample.tokenize(tokenizer, threads)?;
        expect_same("tokenize", tokenized.tokens, sample.engine_tokens)?;
        Ok(Timed { seconds: tokenized.seconds, text_bytes: tokenized.text_bytes })
    }

    /// The whole; `tokenizer` has seen no text.
    fn whole(
        &mut self,
        index: usize,
        threads: u32,
        plan: &Plan,
        tokenizer: Arc<Tokenizer>,
        calibration: &Calibration,
    ) -> Result<()> {
        let mut plan = plan.clone();
        plan.config.runtime.threads = threads;
        let mut pipeline = Pipeline::new(Arc::new(plan), tokenizer, RunOptions::default(), None)?;
        let text = |pipeline: &Pipeline| pipeline.stats().iter().map(|s| s.totals.text_bytes).sum::<u64>();
        let (mut checksum, mut tokens, mut tokens_before, mut text_before) = (0, 0, 0, 0);
        let mut begin = Instant::now();
        for batch in 0..calibration.batches {
            if batch == calibration.warm {
                (tokens_before, text_before) = (tokens, text(&pipeline));
                begin = Instant::now();
            }
            let Some(batch) = pipeline.next_batch()? else { break };
            for block in &batch.blocks {
                checksum = add_ids(checksum, &block.input_ids);
                tokens += block.tokens() as u64;
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        if (checksum, tokens) != (calibration.checksum, calibration.tokens) {
            return Err(differ(format!(
                "the whole gave {tokens} tokens with {threads} threads, {} before",
                calibration.tokens
            )));
        }
        let timed = Timed { seconds, text_bytes: text(&pipeline) - text_before };
        self.whole[index].push((timed, tokens - tokens_before));
        drop(pipeline);
        // Its threads end by themselves; what comes next is not to be measured beside them.
        std::thread::sleep(Duration::from_millis(100));
        Ok(())
    }

    fn figures(&self, sample: &Sample) -> Vec<Figure> {
        let stages = [("read", &self.read), ("parse", &self.parse), ("tokenize", &self.tokenize), ("pack", &self.pack)];
        let rate = |times: &[Timed]| rates(times.iter().map(Timed::rate));
        let all: f64 = stages.iter().map(|(_, times)| 1.0 / rate(times).median).sum();
        let figure = |(stage, times): (&'static str, &Vec<Timed>)| {
            let rate = rate(times);
            Figure {
                stage,
                threads: 1,
                tokens_per_second: rate.median * sample.tokens_per_byte(),
                share: 1.0 / rate.median / all,
                text_bytes_per_second: rate,
            }
        };
        stages.into_iter().map(figure).collect()
    }

    fn wholes(&self, threads: &[u32]) -> Vec<Whole> {
        let whole = |(index, &threads): (usize, &u32)| {
            let (engine, whole) = (&self.engine[index], &self.whole[index]);
            Whole {
                threads,
                text_bytes_per_second: rates(whole.iter().map(|(whole, _)| whole.rate())),
                tokens_per_second: rates(whole.iter().map(|(whole, tokens)| *tokens as f64 / whole.seconds)).median,
                engine_text_bytes_per_second: rates(engine.iter().map(Timed::rate)),
                of_engine: rates(whole.iter().zip(engine).map(|((whole, _), engine)| whole.rate() / engine.rate())),
            }
        };
        threads.iter().enumerate().map(whole).collect()
    }

    fn reference_figures(&self) -> Reference {
        let rate = rates(self.reference.iter().map(Timed::rate));
        Reference {
            engine: "tokenizers",
            text_bytes: self.reference.iter().map(|part| part.text_bytes).sum(),
            faster: rates(self.tokenize.iter().map(Timed::rate)).median / rate.median,
            text_bytes_per_second: rate,
        }
    }
}

/// Processor time since the machine started, in ticks: of all processes, of idling, of this process.
struct CpuTicks {
    busy: u64,
    idle: u64,
    own: u64,
}

impl CpuTicks {
    /// The part of the machine that other processes took.
    fn others_until(&self, later: &CpuTicks) -> f64 {
        let (busy, idle, own) = (later.busy - self.busy, later.idle - self.idle, later.own - self.own);
        busy.saturating_sub(own) as f64 / (busy + idle).max(1) as f64
    }
}

/// From `/proc`, where there is one.
fn cpu_ticks() -> Option<CpuTicks> {
    let all = std::fs::read_to_string("/proc/stat").ok()?;
    let all: Vec<u64> = all.lines().next()?.split_whitespace().skip(1).map_while(|n| n.parse().ok()).collect();
    let own = std::fs::read_to_string("/proc/self/stat").ok()?;
    // After the name in parentheses, user and system time are the 12th and 13th field.
    let own: Vec<&str> = own.rsplit_once(')')?.1.split_whitespace().collect();
    let own = own.get(11)?.parse::<u64>().ok()? + own.get(12)?.parse::<u64>().ok()?;
    // user nice system idle iowait irq softirq steal; guests are part of user.
    let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = all[..] else { return None };
    Some(CpuTicks { busy: user + nice + system + irq + softirq + steal, idle: idle + iowait, own })
}

/// Median, least and most.
fn rates(values: impl Iterator<Item = f64>) -> Rates {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => Rates::default(),
        n => {
            let median = (values[(n - 1) / 2] + values[n / 2]) / 2.0;
            Rates { median, least: values[0], most: values[n - 1] }
        }
    }
}

/// Times the reference on texts that it has not seen, and compares its ids with the engine's.
///
/// The engine's own rate is that of the stage: on so little text it would know few words.
fn compare(engine: &Tokenizer, reference: &Tokenizer, texts: &[&str]) -> Result<Timed> {
    let text_bytes = texts.iter().map(|text| text.len() as u64).sum();
    let run = |tokenizer: &Tokenizer| -> Result<(Timed, Vec<u32>, Vec<usize>)> {
        let (mut ids, mut ends) = (Vec::new(), Vec::new());
        let begin = Instant::now();
        for text in texts {
            tokenizer.encode_into(text, &mut ids)?;
            ends.push(ids.len());
        }
        Ok((Timed { seconds: begin.elapsed().as_secs_f64(), text_bytes }, ids, ends))
    };
    let (_, found, found_ends) = run(engine)?;
    let (timed, expected, expected_ends) = run(reference)?;
    if (&found, &found_ends) != (&expected, &expected_ends) {
        let mut start = (0, 0);
        for (text, (&f, &e)) in texts.iter().zip(found_ends.iter().zip(&expected_ends)) {
            let (f_ids, e_ids) = (&found[start.0..f], &expected[start.1..e]);
            start = (f, e);
            if f_ids != e_ids {
                let at = f_ids.iter().zip(e_ids).take_while(|(a, b)| a == b).count();
                let text: String = text.chars().take(40).collect();
                let detail = format!(
                    "{} and the reference differ at token {at} of the document that starts {text:?}: found {:?}, expected \
                     {:?}; please report it, and set tokenizer.engine = \"tokenizers\"",
                    engine.engine(),
                    f_ids.get(at),
                    e_ids.get(at)
                );
                return Err(Error::new(ErrorKind::Tokenizer, detail));
            }
        }
    }
    Ok(timed)
}

/// What would have to become faster, in a sentence.
fn bound_by(report: &Report) -> String {
    let Some(slowest) = report.stages.iter().max_by(|a, b| a.share.total_cmp(&b.share)) else { return String::new() };
    let Some(whole) = report.whole.last() else { return String::new() };
    let pack =
        report.stages.iter().find(|stage| stage.stage == "pack").map_or(f64::MAX, |s| s.text_bytes_per_second.median);
    let rate = whole.text_bytes_per_second.median;
    // What runs on workers shares the threads; packing has the caller's thread.
    let expected = report.sum_text_bytes_per_second * f64::from(whole.threads).min(report.cores as f64);
    let mut text = format!("{}, {:.0} % of the work", slowest.stage, slowest.share * 100.0);
    if rate > 0.8 * pack {
        text = "packing, which one thread does".into();
    }
    text += &format!("; the whole reaches {:.0} % of what its stages allow", rate / expected * 100.0);
    if f64::from(whole.threads) > report.cores as f64 {
        text += &format!(" ({} threads share {} cores)", whole.threads, report.cores);
    }
    text
}

fn show(report: &Report) -> String {
    let mega = |rate: f64| if rate < 1e7 { format!("{:.2}", rate / 1e6) } else { format!("{:.1}", rate / 1e6) };
    let spread = |rates: &Rates| format!("{} to {}", mega(rates.least), mega(rates.most));
    let mut text = format!(
        "{} of text in {} documents, {} tokens; {} rounds, {} core{}\n",
        size(report.text_bytes),
        count(report.documents),
        count(report.tokens),
        report.rounds,
        report.cores,
        if report.cores == 1 { "" } else { "s" }
    );
    text += &format!("engine {}: {}\n", report.engine, report.engine_reason);
    text +=
        &format!("checked: {} blocks of the stages equal the pipeline's, id for id\n\n", count(report.blocks_checked));
    let mut table =
        Table::new(["stage", "threads", "MB/s of text", "least to most", "tokens/s", "share of time"], &[0]);
    for figure in &report.stages {
        table.row([
            figure.stage.to_owned(),
            figure.threads.to_string(),
            mega(figure.text_bytes_per_second.median),
            spread(&figure.text_bytes_per_second),
            count(figure.tokens_per_second as u64),
            format!("{:.1} %", figure.share * 100.0),
        ]);
    }
    let per_byte = report.tokens as f64 / report.text_bytes.max(1) as f64;
    let sum = report.sum_text_bytes_per_second;
    let sum_tokens = count((sum * per_byte) as u64);
    table.row(["all four".into(), "1".into(), mega(sum), String::new(), sum_tokens, "100.0 %".into()]);
    for whole in &report.whole {
        if whole.threads > 1 {
            table.row([
                "tokenize".to_owned(),
                whole.threads.to_string(),
                mega(whole.engine_text_bytes_per_second.median),
                spread(&whole.engine_text_bytes_per_second),
                count((whole.engine_text_bytes_per_second.median * per_byte) as u64),
            ]);
        }
        table.row([
            "whole".to_owned(),
            whole.threads.to_string(),
            mega(whole.text_bytes_per_second.median),
            spread(&whole.text_bytes_per_second),
            count(whole.tokens_per_second as u64),
        ]);
    }
    text += &table.text("");
    text += "\n";
    for whole in &report.whole {
        text += &format!(
            "whole / engine alone = {:.2} ({:.2} to {:.2}) on {} thread{}\n",
            whole.of_engine.median,
            whole.of_engine.least,
            whole.of_engine.most,
            whole.threads,
            if whole.threads == 1 { "" } else { "s" }
        );
    }
    text += &format!("bound by {}\n", report.bound_by);
    if let Some(reference) = &report.reference {
        text += &format!(
            "{} is {:.1} times as fast as {} ({} MB/s), with the same ids on {}\n",
            report.engine,
            reference.faster,
            reference.engine,
            mega(reference.text_bytes_per_second.median),
            size(reference.text_bytes)
        );
    }
    for note in &report.notes {
        text += &format!("note: {note}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Odd and even numbers of values.
    #[test]
    fn medians() {
        let of = |values: &[f64]| {
            let Rates { median, least, most } = rates(values.iter().copied());
            (median, least, most)
        };
        assert_eq!(of(&[3.0, 1.0, 2.0]), (2.0, 1.0, 3.0));
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]), (2.5, 1.0, 4.0));
        assert_eq!(of(&[]), (0.0, 0.0, 0.0));
    }

    /// 200 ticks on two cores: 60 of this process, 40 of others.
    #[test]
    fn others_are_what_is_busy_and_not_own() {
        let begin = CpuTicks { busy: 1000, idle: 500, own: 10 };
        assert_eq!(begin.others_until(&CpuTicks { busy: 1100, idle: 600, own: 70 }), 0.2);
    }
}
