//! tokenmill: raw text shards in, packed blocks of tokens out, tokenized on the fly, with a state from which any run goes
//! on exactly.
//!
//! ```no_run
//! use std::sync::Arc;
//! use tokenmill::{config::Config, pipeline::{Pipeline, RunOptions}, plan::Plan, tokenizer::Tokenizer};
//!
//! # fn main() -> tokenmill::error::Result<()> {
//! let config = Config::load("pretrain.toml".as_ref(), &[])?;            // what was written
//! let plan = Arc::new(Plan::new(&config)?);                             // what will run
//! let tokenizer = Arc::new(Tokenizer::load(&config.tokenizer_options())?);
//! let mut pipeline = Pipeline::new(plan, tokenizer, RunOptions::default(), None)?;
//! while let Some(batch) = pipeline.next_batch()? {
//!     for block in &batch.blocks {
//!         let (_ids, _documents) = (&block.input_ids, block.segment_ids());
//!     }
//!     let _state = pipeline.checkpoint();                               // positions, no data
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # How to read it: in the order the data flows
//!
//! ```text
//! storage      bytes of an object: local files, S3, HTTP, the hub
//! source       which shards there are (manifest), and who reads what (dealing)
//! shard        one object -> units -> windows of records: codecs, JSON lines, text, Parquet
//! tokenizer    text -> ids: one definition, two engines, the same ids
//! chat         conversations -> ids and what of them is trained: templates, spans, control tokens
//! packing      ids of documents -> blocks, and the cursor that says what was delivered
//! mixture      which source gives a lane's next block
//! pipeline     all of it, serially or ahead on threads, lane by lane in the global order
//! state        cursors as a checkpoint
//! report       what a run did
//! ```
//! `error`, `document`, `block`, `order` and `size` are what the stages share; `config` is what was written, `plan` what will run.
//! Stages don't import each other; they meet in `document` and `block`, and `pipeline` wires them.
//!
//! # What always holds
//!
//! Each has tests in `tests/it`.
//!
//! * **G1 Deterministic.** The stream is a function of config, data, tokenizer and seed. Threads, timing, restarts, how far is
//!   read ahead and the machine are not in it. (`determinism`)
//! * **G2 Exact resume.** For every k, the stream resumed from the state after batch k is that of the uninterrupted run from
//!   batch k+1 on, in every field, also after SIGKILL. The state describes what was delivered, never what was read ahead.
//!   (`resume`, `properties`, `cli`)
//! * **G3 Elastic.** With the same global batch size, the sequence of global batches is the same for every world size that
//!   divides `lanes`, also when it changes at a resume. At the end of a finite run, where lanes run out at different blocks, it
//!   is the sequence of each lane that is the same. (`resume`, `determinism`)
//! * **G4 Exactly once.** Over all ranks each epoch of a source delivers each record once. What is dropped (a partial block, a
//!   bad record, batches skipped, the uneven end of ranks) has a config line or option that allows it and a counter that says so.
//!   (`determinism`, `faults`, `oracle`, `skip`, `even`)
//! * **G5 Mixture by tokens.** Each source's blocks follow its weight with an error of at most one block a lane. (`mixture`,
//!   `determinism`)
//! * **G6 Small state.** At most 1 KiB a lane and source, whatever was consumed. (`resume`)
//! * **G7 Fast resume.** Work before the first batch after a resume is bounded by a window a lane on shards that can be
//!   seeked; on others by decompressing up to the place. (`shard`)
//! * **G8 Never hangs.** Every wait is bounded; a worker's error or panic reaches the caller in its place in the order; a stall
//!   names stage, source, shard and lane. (`storage`, `remote`, `s3`)
//! * **G9 Never silently wrong.** Another tokenizer, seed, packing, or changed data at a resume is an error that lists found and
//!   expected. Corrupt input is an error with shard, record and byte, or a counted skip. (`faults`, `damage`, `cli`)
//! * **G10 Bounded memory.** Everything read ahead has a bound in bytes, which follows from `runtime.memory`. (`memory`)
//!
//! The library prints nothing and takes nothing from the environment, but for AWS' credential chain, which is that; it logs through
//! `tracing`.

pub mod block;
pub mod chat;
pub mod config;
pub mod document;
pub mod error;
pub mod mixture;
pub mod order;
pub mod packing;
pub mod pipeline;
pub mod plan;
mod ranges;
pub mod report;
pub mod shard;
pub mod size;
pub mod source;
pub mod state;
pub mod storage;
pub mod tokenizer;
