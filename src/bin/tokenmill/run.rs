//! `tokenmill run`: the pipeline, with output, checkpoints, progress and a report.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tokenmill::config::Config;
use tokenmill::error::{Error, ErrorKind, Result};
use tokenmill::pipeline::{BlockCounts, Even, Pipeline, RunOptions, count_blocks, read_ahead};
use tokenmill::plan::Plan;
use tokenmill::report::Meter;
use tokenmill::tokenizer::Tokenizer;

use crate::args::{ConfigArguments, EvenMode, RunArguments};
use crate::output::{Begin, From, Output};
use crate::places::Places;
use crate::progress::Progress;
use crate::signals::Signals;

/// Loads the config with the command line's overrides.
pub fn load_config(arguments: &ConfigArguments, threads: Option<u32>) -> Result<Config> {
    let mut overrides = arguments.overrides.clone();
    overrides.extend(threads.map(|threads| format!("runtime.threads={threads}")));
    Ok(with_environment(Config::load(&arguments.config, &overrides)?))
}

/// A config with what this process' environment says: the library asks for none of it.
pub fn with_environment(config: Config) -> Config {
    config.with_environment(|name| std::env::var(name).ok())
}

/// Runs, and gives the exit status.
pub fn run(arguments: &RunArguments, started: Instant) -> Result<u8> {
    let signals =
        Signals::install().map_err(|e| Error::new(ErrorKind::Internal, "can't install signal handlers").because(e))?;
    let config = load_config(&arguments.config, arguments.threads)?;
    if arguments.checkpoint_every == Some(0) {
        return Err(Error::new(ErrorKind::Config, "--checkpoint-every is 0, expected at least 1"));
    }
    let plan = Arc::new(Plan::new(&config)?);
    plan.lanes_of(arguments.ranks.rank, arguments.ranks.world_size)?;
    let places = Places::new(&config);
    let from = arguments.resume.as_deref().map(|path| places.load(path)).transpose()?;
    read_ahead(&plan, arguments.ranks.rank, arguments.ranks.world_size, from.as_ref());
    let tokenizer = Arc::new(Tokenizer::load(&config.tokenizer_options())?);
    if let (None, Some(folder)) = (&from, &arguments.checkpoint) {
        let ranks = &arguments.ranks;
        places.check_folder(folder, &plan.fingerprint(&tokenizer), ranks.rank, ranks.world_size)?;
    }
    let mut options = RunOptions {
        rank: arguments.ranks.rank,
        world_size: arguments.ranks.world_size,
        interrupt: signals.stop.clone(),
        skip: arguments.skip_batches.clone(),
        even: arguments.even.map(|even| match even {
            EvenMode::Drop => Even::Drop,
            EvenMode::Pad => Even::Pad,
        }),
        ..RunOptions::default()
    };
    if let Some(path) = &arguments.even_counts {
        let counts = if path.exists() {
            BlockCounts::load(path)?
        } else {
            let counts = count_blocks(&plan, &tokenizer, &options, from.as_ref())?;
            counts.save(path)?;
            counts
        };
        options.even_counts = Some(Arc::new(counts));
    }
    let mut pipeline = Pipeline::new(plan, tokenizer, options, from.as_ref())?;
    let (rank, world_size) = (arguments.ranks.rank, arguments.ranks.world_size);
    let begin = Begin { rank, world_size, blocks_before: pipeline.delivered_blocks() };
    let goes_on = match &from {
        None => From::Start,
        Some(from) if from.world_size == world_size => From::OwnCheckpoint,
        Some(_) => From::OthersCheckpoint,
    };
    let mut sink = Output::open(
        &arguments.out,
        arguments.format,
        config.block_size,
        config.has_masks(),
        (goes_on, begin),
        &places,
    )?;
    if from.is_none() {
        // A run that is killed before its first checkpoint can be resumed all the same.
        save(arguments, &places, &pipeline)?;
    }
    let mut meter = Meter::new(started, &pipeline);
    let mut progress = Progress::new(arguments.quiet, arguments.batches);
    let result = drive(arguments, &places, &signals, &mut pipeline, &mut sink, &mut meter, &mut progress);
    progress.end();
    // Whatever ended the run, what was delivered is kept and said.
    let out = sink.shown();
    let kept = match &result {
        Err(error) if error.kind() == ErrorKind::Write => Ok(()),
        _ => sink.finish().and_then(|()| save(arguments, &places, &pipeline)),
    };
    let mut report = meter.report(&pipeline);
    report.storage.add(&places.traffic());
    if !arguments.quiet {
        eprint!("{}", report.summary(out.as_deref()));
    }
    if let Some(path) = &arguments.report {
        let text = serde_json::to_string_pretty(&report).expect("a report is JSON") + "\n";
        write_report(path, &text)?;
    }
    result.and(kept)?;
    Ok(signals.status().unwrap_or(0))
}

/// Delivers batches until the run is to end.
fn drive(
    arguments: &RunArguments,
    places: &Places<'_>,
    signals: &Signals,
    pipeline: &mut Pipeline,
    sink: &mut Output<'_>,
    meter: &mut Meter,
    progress: &mut Progress,
) -> Result<()> {
    let stop = |signals: &Signals| signals.stop.load(std::sync::atomic::Ordering::Relaxed);
    while arguments.batches.is_none_or(|batches| meter.batches < batches) && !stop(signals) {
        let next = match pipeline.pass_over() {
            Ok(true) => Ok(None),
            Ok(false) => match pipeline.next_batch() {
                Ok(None) => break,
                batch => batch,
            },
            Err(error) => Err(error),
        };
        let batch = match next {
            Err(error) if error.kind() == ErrorKind::Interrupted => break,
            batch => batch?,
        };
        if let Some(batch) = batch {
            meter.count(&batch);
            for block in batch.blocks {
                // A masked block is of no source.
                let masked = block.segments.is_empty();
                let source = if masked { "" } else { pipeline.plan().sources[block.source as usize].name() };
                sink.write(block, source)?;
            }
        }
        if let Some(every) = arguments.checkpoint_every
            && pipeline.step().is_multiple_of(every)
        {
            sink.sync()?;
            save(arguments, places, pipeline)?;
        }
        progress.show(meter, pipeline);
    }
    Ok(())
}

fn save(arguments: &RunArguments, places: &Places<'_>, pipeline: &Pipeline) -> Result<()> {
    match &arguments.checkpoint {
        Some(folder) => places.save(folder, &pipeline.checkpoint()),
        None => Ok(()),
    }
}

fn write_report(path: &Path, text: &str) -> Result<()> {
    if path == Path::new("-") {
        return crate::print_stdout(text);
    }
    std::fs::write(path, text)
        .map_err(|e| Error::new(ErrorKind::Write, format!("can't write the report {}", path.display())).because(e))
}
