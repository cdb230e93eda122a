//! The command, started as a user starts it, and a small corpus for it.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::corpus::*;

pub fn tokenmill() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokenmill"));
    command.env_remove("RANK").env_remove("WORLD_SIZE").env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

pub fn run(arguments: &[&str]) -> Output {
    tokenmill().args(arguments).output().expect("the command starts")
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

pub fn corpus() -> Corpus {
    Corpus::new().source("web", Kind::JsonlZstd, 2, 400, 400, "weight = 0.7\nmax_epochs = 3").source(
        "code",
        Kind::Parquet,
        3,
        300,
        300,
        "weight = 0.3\nmax_epochs = 3",
    )
}

pub const HEAD: &str = "lanes = 4\nblock_size = 64\nbatch_size = 4\n[shuffle]\nspan = 6000\nwindow = 1500\n";

/// The lines of a JSON-lines output, parsed.
pub fn lines(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).expect("the output is there");
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}
