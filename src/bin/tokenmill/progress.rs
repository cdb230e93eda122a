//! Progress on standard error: a line that is redrawn on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tokenmill::pipeline::Pipeline;
use tokenmill::report::Meter;

pub struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    every: Duration,
    last: Instant,
}

impl Progress {
    pub fn new(quiet: bool, batches: Option<u64>) -> Self {
        let terminal = std::io::stderr().is_terminal() && !quiet;
        let bar = terminal.then(|| {
            let bar = match batches {
                Some(batches) => ProgressBar::new(batches),
                None => ProgressBar::new_spinner(),
            };
            let style = if batches.is_some() {
                "{bar:24} {pos}/{len} batches, {msg}"
            } else {
                "{spinner} {pos} batches, {msg}"
            };
            bar.with_style(ProgressStyle::with_template(style).expect("the template is right"))
        });
        let every = if terminal { Duration::from_millis(200) } else { Duration::from_secs(5) };
        Progress { bar, quiet, every, last: Instant::now() }
    }

    /// Shows where the run stands, if it is time to.
    pub fn show(&mut self, meter: &Meter, pipeline: &Pipeline) {
        if self.quiet || self.last.elapsed() < self.every {
            return;
        }
        self.last = Instant::now();
        let report = meter.report(pipeline);
        let shares: Vec<String> =
            report.sources.iter().map(|(name, s)| format!("{name} {:.1} %", s.share * 100.0)).collect();
        let line = format!(
            "{} blocks, {:.2}M tokens/s, {:.1} MB/s, {}",
            report.blocks,
            report.tokens_per_second / 1e6,
            report.text_bytes_per_second / 1e6,
            shares.join(", ")
        );
        match &self.bar {
            Some(bar) => {
                bar.set_position(meter.batches);
                bar.set_message(line);
            }
            None => eprintln!("{} batches, {line}", meter.batches),
        }
    }

    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
