//! `tokenmill count`: the blocks of every lane of a finite run, its tokens and documents.

use std::sync::Arc;

use tokenmill::error::Result;
use tokenmill::pipeline::{RunOptions, count_blocks};
use tokenmill::plan::Plan;
use tokenmill::tokenizer::Tokenizer;

use crate::args::CountArguments;
use crate::places::Places;
use crate::run::load_config;
use crate::table::count as number;

pub fn count(arguments: &CountArguments) -> Result<()> {
    let config = load_config(&arguments.config, arguments.threads)?;
    let plan = Arc::new(Plan::new(&config)?);
    let tokenizer = Arc::new(Tokenizer::load(&config.tokenizer_options())?);
    let from = arguments.resume.as_deref().map(|path| Places::new(&config).load(path)).transpose()?;
    let counts = count_blocks(&plan, &tokenizer, &RunOptions::default(), from.as_ref())?;
    if let Some(path) = &arguments.to {
        counts.save(path)?;
    }
    let blocks: u64 = counts.blocks.iter().sum();
    if arguments.json {
        let value = serde_json::json!({
            "blocks": blocks, "tokens": counts.tokens, "documents": counts.documents, "lanes": counts.blocks,
        });
        return crate::print_stdout(&format!("{value:#}\n"));
    }
    let (least, most) = (counts.blocks.iter().min().unwrap_or(&0), counts.blocks.iter().max().unwrap_or(&0));
    crate::print_stdout(&format!(
        "{} blocks, {} tokens, {} documents; {} to {} blocks in each of {} lanes\n",
        number(blocks),
        number(counts.tokens),
        number(counts.documents),
        number(*least),
        number(*most),
        counts.blocks.len()
    ))
}
