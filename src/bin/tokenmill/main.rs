//! The `tokenmill` command: parses, calls the library, prints.
//!
//! Exit status: 0 done, 1 the run failed, 2 wrong use or config, 130 and 143 after SIGINT and SIGTERM.

mod args;
mod bench;
mod check;
mod count;
mod inspect;
mod inspect_state;
mod locate;
mod npy;
mod output;
mod places;
mod plan;
mod progress;
mod run;
mod sample;
mod signals;
mod sink;
mod table;
mod visible;

use std::error::Error as _;
use std::process::ExitCode;

use clap::Parser;
use tokenmill::error::{Error, ErrorKind, Result};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let started = std::time::Instant::now();
    let arguments = args::Arguments::parse();
    init_logging(arguments.quiet());
    let result: Result<u8> = match &arguments.command {
        args::Command::Run(run) => run::run(run, started),
        args::Command::Plan(plan) => plan::plan(plan).map(|()| 0),
        args::Command::Inspect(inspect) => inspect::inspect(inspect).map(|()| 0),
        args::Command::Locate(locate) => locate::locate(locate).map(|()| 0),
        args::Command::Count(count) => count::count(count).map(|()| 0),
        args::Command::Bench(bench) => bench::bench(bench).map(|()| 0),
        args::Command::Check(check) => check::check(check).map(|()| 0),
        args::Command::Schema => schema().map(|()| 0),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            print_chain(&error);
            ExitCode::from(match error.kind() {
                ErrorKind::Config | ErrorKind::NotFound => 2,
                _ => 1,
            })
        }
    }
}

/// One line for the error and one for each cause.
fn print_chain(error: &Error) {
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(inner) = cause {
        eprintln!("  because: {inner}");
        cause = inner.source();
    }
}

fn init_logging(quiet: bool) {
    use tracing_subscriber::EnvFilter;
    // What fails in the AWS SDK comes as an error of ours, which says what to check.
    let default = if quiet { "warn,aws_config=error" } else { "info,aws_config=error" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .without_time()
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
}

fn schema() -> Result<()> {
    let text = serde_json::to_string_pretty(&tokenmill::config::Config::schema()).expect("a schema is JSON");
    print_stdout(&format!("{text}\n"))
}

/// Writes to standard output; a reader that went away is no error.
fn print_stdout(text: &str) -> Result<()> {
    use std::io::Write;
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::new(ErrorKind::Write, "can't write to standard output").because(error))
        }
        _ => Ok(()),
    }
}
