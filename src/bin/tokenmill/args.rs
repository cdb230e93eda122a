//! The command line, as clap sees it.

use std::ops::Range;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Raw text shards to packed blocks of tokens: tokenized on the fly, resumed bit for bit.
#[derive(Parser)]
#[command(name = "tokenmill", version, about, max_term_width = 110)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run the pipeline
    Run(RunArguments),
    /// Show what would run: shards, spans, lanes, predicted memory; reads no text
    Plan(PlanArguments),
    /// Show blocks as text with their documents, or a checkpoint in readable form
    Inspect(InspectArguments),
    /// Say which documents a block is made of: shard, record, bytes, tokens
    Locate(LocateArguments),
    /// Count the blocks of every lane of a finite run, its tokens and documents
    Count(CountArguments),
    /// Time each stage and the whole on the config's data
    Bench(BenchArguments),
    /// Render and tokenize rows of conversations, and report what is trained and what would be dropped
    Check(CheckArguments),
    /// Print the JSON Schema of the config
    Schema,
}

impl Arguments {
    /// Whether to print no more than warnings.
    pub fn quiet(&self) -> bool {
        match &self.command {
            Command::Run(run) => run.quiet,
            Command::Schema
            | Command::Check(_)
            | Command::Locate(_)
            | Command::Count(_)
            | Command::Plan(_)
            | Command::Inspect(_)
            | Command::Bench(_) => true,
        }
    }
}

#[derive(Args)]
pub struct ConfigArguments {
    /// The config file (TOML)
    pub config: PathBuf,
    /// Set a key of the config: block_size=4096, source.web.weight=0.5 (may be repeated)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
}

#[derive(Args)]
pub struct RankArguments {
    /// This rank, from 0
    #[arg(long, env = "RANK", default_value_t = 0)]
    pub rank: u32,
    /// Number of ranks; must divide `lanes`
    #[arg(long, env = "WORLD_SIZE", default_value_t = 1)]
    pub world_size: u32,
}

#[derive(Args)]
pub struct RunArguments {
    #[command(flatten)]
    pub config: ConfigArguments,
    #[command(flatten)]
    pub ranks: RankArguments,
    /// Stop after this many batches of this call [default: when the sources end]
    #[arg(long, value_name = "N")]
    pub batches: Option<u64>,
    /// Where blocks go: a file, s3://bucket/key, - for standard output, none. With --resume a file of the same run is continued
    #[arg(long, value_name = "PATH", default_value = "none")]
    pub out: String,
    /// How blocks are written [default: by the file's name; jsonl on standard output]
    #[arg(long)]
    pub format: Option<OutFormat>,
    /// Folder for checkpoints, or s3://bucket/prefix: one at the end, and on SIGINT and SIGTERM
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,
    /// A checkpoint after every N batches as well
    #[arg(long, value_name = "N", requires = "checkpoint")]
    pub checkpoint_every: Option<u64>,
    /// Go on from a checkpoint: a folder (its newest complete step), a step's folder, or a file; also below s3://bucket/prefix
    #[arg(long, value_name = "PATH")]
    pub resume: Option<PathBuf>,
    /// Worker threads, as runtime.threads
    #[arg(long, value_name = "T")]
    pub threads: Option<u32>,
    /// Pass over batches A to B - 1, numbered from 0 since the run's first start: after a loss spike, resume from a checkpoint
    /// before it with this. The batches after are what they would have been. It saves training on them and their output, not
    /// their tokenizing. The checkpoint keeps it; give all ranks the same (may be repeated)
    #[arg(long, value_name = "A..B", value_parser = batch_range)]
    pub skip_batches: Vec<Range<u64>>,
    /// Make all ranks of a finite run give the same number of batches, all full. Counts the blocks of all lanes first, which
    /// tokenizes everything once more, on every rank; see --even-counts
    #[arg(long, value_enum)]
    pub even: Option<EvenMode>,
    /// Take the counts for --even from this file; if it isn't there, count and write it (also made by `tokenmill count`)
    #[arg(long, value_name = "FILE", requires = "even")]
    pub even_counts: Option<PathBuf>,
    /// Write a JSON report to this file (- for standard output)
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// No progress, no summary; warnings and errors only
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EvenMode {
    /// End at the last step at which every rank has a full batch
    Drop,
    /// End with the longest rank; the others, and the last batch, get masked blocks
    Pad,
}

fn batch_range(text: &str) -> Result<Range<u64>, String> {
    let range = text.split_once("..").and_then(|(a, b)| Some(a.trim().parse::<u64>().ok()?..b.trim().parse().ok()?));
    range.filter(|range| !range.is_empty()).ok_or_else(|| "expected two rising numbers such as 1200..1250".into())
}

#[derive(Args)]
pub struct LocateArguments {
    #[command(flatten)]
    pub config: ConfigArguments,
    /// The block's global number, the `g` of the output
    #[arg(long, value_name = "G")]
    pub block: u64,
    /// The run's checkpoints: the lane is replayed from the nearest before the block, which takes seconds; without it from the
    /// beginning, tokenizing all documents of the lane (a lanes-th of the corpus) before the block
    #[arg(long, value_name = "PATH")]
    pub resume: Option<PathBuf>,
    /// Worker threads, as runtime.threads
    #[arg(long, value_name = "T")]
    pub threads: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct CountArguments {
    #[command(flatten)]
    pub config: ConfigArguments,
    /// Write the counts to this file, for `run --even-counts`
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
    /// Count from a checkpoint, whose weights may have changed
    #[arg(long, value_name = "PATH")]
    pub resume: Option<PathBuf>,
    /// Worker threads, as runtime.threads
    #[arg(long, value_name = "T")]
    pub threads: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutFormat {
    /// A JSON object a block
    Jsonl,
    /// One NumPy array of ids, int32 [blocks, block_size]
    Npy,
    /// A Parquet row a block
    Parquet,
}

#[derive(Args)]
pub struct PlanArguments {
    #[command(flatten)]
    pub config: ConfigArguments,
    #[command(flatten)]
    pub ranks: RankArguments,
    /// Worker threads, as runtime.threads
    #[arg(long, value_name = "T")]
    pub threads: Option<u32>,
    /// Write the listing of all shards to this file (or s3://bucket/key), for `manifest` of the config: other ranks then list
    /// nothing
    #[arg(long, value_name = "FILE")]
    pub save_manifest: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct CheckArguments {
    #[command(flatten)]
    pub config: ConfigArguments,
    /// How many records of each source to read
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub rows: u64,
    /// Write each row to this file as a line of JSON: record, input_ids, labels; a bad record with its error
    #[arg(long, value_name = "PATH")]
    pub out: Option<PathBuf>,
}

#[derive(Args)]
pub struct InspectArguments {
    /// A config, a checkpoint file, or a folder of checkpoints, also s3://bucket/prefix
    pub path: PathBuf,
    /// Set a key of the config (may be repeated)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
    /// How many blocks to show
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub blocks: u64,
    /// Show blocks after this checkpoint
    #[arg(long, value_name = "PATH")]
    pub resume: Option<PathBuf>,
    /// Most characters of a document to show in a block, 0 for all [default: 600 on a terminal, else all]
    #[arg(long, value_name = "N")]
    pub chars: Option<usize>,
    /// Columns to break lines at, 0 for none [default: those of the terminal, else none]
    #[arg(long, value_name = "N")]
    pub width: Option<usize>,
    /// When to colour; `auto` does on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub color: Color,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    Auto,
    Always,
    Never,
}

#[derive(Args)]
pub struct BenchArguments {
    #[command(flatten)]
    pub config: ConfigArguments,
    /// Text to measure on, in MB [default: 64, or more where the pipeline reads far ahead]
    #[arg(long, value_name = "MB")]
    pub megabytes: Option<u64>,
    /// Rounds; each stage runs once a round
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Worker threads of the whole: 4, 1,2,8 or 1..4 [default: 1 and runtime.threads]
    #[arg(long, value_name = "T", value_parser = threads)]
    pub threads: Option<Threads>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Numbers of threads, in order.
#[derive(Clone)]
pub struct Threads(pub Vec<u32>);

fn threads(text: &str) -> Result<Threads, String> {
    let number = |text: &str| text.trim().parse::<u32>().ok().filter(|n| (1..=4096).contains(n));
    let mut list = Vec::new();
    for part in text.split(',') {
        let range = match part.split_once("..") {
            Some((first, last)) => number(first).zip(number(last)),
            None => number(part).map(|n| (n, n)),
        };
        let (first, last) = range.ok_or("expected numbers from 1 to 4096 such as 4, 1,2,8 or 1..4")?;
        list.extend(first..=last);
    }
    list.sort_unstable();
    list.dedup();
    Ok(Threads(list))
}
