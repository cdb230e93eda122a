//! `tokenmill locate`: which documents a block is made of.

use std::sync::Arc;

use serde::Serialize;
use tokenmill::error::Result;
use tokenmill::pipeline::{self, DocumentPart, RunOptions};
use tokenmill::plan::Plan;
use tokenmill::tokenizer::Tokenizer;

use crate::args::LocateArguments;
use crate::places::Places;
use crate::run::load_config;
use crate::table::{Table, count};
use crate::visible::safe;

#[derive(Serialize)]
struct Located {
    block: u64,
    lane: u32,
    documents: Vec<DocumentPart>,
}

pub fn locate(arguments: &LocateArguments) -> Result<()> {
    let config = load_config(&arguments.config, arguments.threads)?;
    let plan = Arc::new(Plan::new(&config)?);
    let tokenizer = Arc::new(Tokenizer::load(&config.tokenizer_options())?);
    let (block, lanes) = (arguments.block, u64::from(config.lanes));
    let lane = (block % lanes) as u32;
    let checkpoints = match &arguments.resume {
        Some(path) => Places::new(&config).load_around(path, lane, block / lanes)?,
        None => Vec::new(),
    };
    let documents = pipeline::locate(&plan, &tokenizer, block, &checkpoints, &RunOptions::default())?;
    let located = Located { block, lane, documents };
    if arguments.json {
        let text = serde_json::to_string_pretty(&located).expect("documents are JSON");
        return crate::print_stdout(&format!("{text}\n"));
    }
    crate::print_stdout(&show(&located))
}

fn show(located: &Located) -> String {
    let mut table = Table::new(["tokens", "of the document", "epoch", "record", "bytes", "shard"], &[5]);
    for part in &located.documents {
        let tokens = |range: &std::ops::Range<u64>| format!("{}..{}", range.start, range.end);
        table.row([
            tokens(&part.tokens_in_block),
            format!("{} of {}", tokens(&part.tokens_in_document), part.document_tokens),
            part.epoch.to_string(),
            part.record.to_string(),
            part.bytes.as_ref().map_or("-".into(), tokens),
            safe(&part.shard),
        ]);
    }
    let first = located.documents.first();
    format!(
        "block {}  lane {}  source {}, {} documents\n{}",
        located.block,
        located.lane,
        first.map_or(String::new(), |part| safe(&part.source)),
        count(located.documents.len() as u64),
        table.text("  ")
    )
}
