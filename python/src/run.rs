//! A run: config, plan and tokenizer, before any thread is started.
//!
//! Holds: nothing in it changes, so a forked process may use its parent's. Does not know: where the run stands; a checkpoint's bytes
//! say that.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokenmill::config::Config;
use tokenmill::error::{Error, ErrorKind, Result};
use tokenmill::pipeline::{self, Even, Pipeline, RunOptions};
use tokenmill::plan::Plan;
use tokenmill::state::{self, Checkpoint};
use tokenmill::storage::{Stores, scheme};
use tokenmill::tokenizer::Tokenizer;

use crate::error::raise;
use crate::stream::{Signals, Stream};

/// What runs.
#[pyclass(module = "tokenmill._tokenmill", frozen)]
pub struct Run {
    plan: Arc<Plan>,
    tokenizer: Arc<Tokenizer>,
    startup: std::time::Duration,
}

#[pymethods]
impl Run {
    /// Lists shards and loads the tokenizer of a config: TOML text, or JSON of the same structure.
    #[new]
    fn new(py: Python<'_>, text: &str, json: bool, base: PathBuf, overrides: Vec<String>) -> PyResult<Self> {
        let begin = Instant::now();
        let load = || -> Result<Run> {
            let config = parse(text, json, base, &overrides)?;
            let config = config.with_environment(|name| std::env::var(name).ok());
            let plan = Arc::new(Plan::new(&config)?);
            let tokenizer = Arc::new(Tokenizer::load(&config.tokenizer_options())?);
            Ok(Run { plan, tokenizer, startup: begin.elapsed() })
        };
        py.detach(load).map_err(|error| raise(py, &error))
    }

    /// The config with all that was filled in, as JSON.
    fn config(&self) -> String {
        json_of(&self.plan.config)
    }

    /// `(engine, why it encodes, ids, EOS, BOS, padding)`.
    fn tokenizer(&self) -> (&str, &str, u32, Option<u32>, Option<u32>, u32) {
        let tokenizer = &self.tokenizer;
        (
            tokenizer.engine(),
            tokenizer.engine_reason(),
            tokenizer.vocab_size(),
            tokenizer.eos(),
            tokenizer.bos(),
            tokenizer.pad(),
        )
    }

    /// The text of ids.
    fn decode(&self, py: Python<'_>, ids: Vec<u32>) -> String {
        py.detach(|| self.tokenizer.decode(&ids))
    }

    /// Whether something is read from a store other than this machine's files, which has threads of its own.
    fn remote(&self) -> bool {
        let paths = self.plan.config.source.iter().flat_map(|source| &source.paths);
        paths.chain([&self.plan.config.tokenizer.path]).any(|path| scheme(path).is_some())
    }

    /// The bytes of the checkpoint at `path`, as `tokenmill run --resume` takes it.
    fn load_checkpoint<'py>(&self, py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyBytes>> {
        let load = || match scheme(path) {
            Some(_) => state::load_objects(&self.stores()?, path),
            None => state::load(path.as_ref()),
        };
        let checkpoint = py.detach(load).map_err(|error| raise(py, &error))?;
        Ok(PyBytes::new(py, &checkpoint.to_bytes()))
    }

    /// Writes a checkpoint's bytes into a folder, as `tokenmill run --checkpoint` does; returns the path.
    fn save_checkpoint(&self, py: Python<'_>, folder: &str, state: &[u8]) -> PyResult<PathBuf> {
        let save = || -> Result<PathBuf> {
            let checkpoint = Checkpoint::parse(state)?;
            let saved = match scheme(folder) {
                Some(_) => state::save_object(&self.stores()?, folder, &checkpoint)?,
                None => state::save(folder.as_ref(), &checkpoint)?,
            };
            Ok(saved.path)
        };
        py.detach(save).map_err(|error| raise(py, &error))
    }

    /// The lanes of a rank.
    fn lanes_of(&self, py: Python<'_>, rank: u32, world_size: u32) -> PyResult<Vec<u32>> {
        self.plan.lanes_of(rank, world_size).map_err(|error| raise(py, &error))
    }

    /// Checks that a run may go on from `state` (a checkpoint's bytes; `None`: its beginning), and gives the checkpoint of the lanes
    /// asked for. Starts nothing and reads no shard.
    #[pyo3(signature = (rank, world_size, lanes=None, state=None))]
    fn resume<'py>(
        &self,
        py: Python<'py>,
        rank: u32,
        world_size: u32,
        lanes: Option<Vec<u32>>,
        state: Option<&[u8]>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let begin = || -> Result<Vec<u8>> {
            let from = state.map(Checkpoint::parse).transpose()?;
            let options = RunOptions { rank, world_size, lanes, serial: true, ..RunOptions::default() };
            let pipeline = Pipeline::new(self.plan.clone(), self.tokenizer.clone(), options, from.as_ref())?;
            Ok(pipeline.checkpoint().to_bytes())
        };
        let bytes = py.detach(begin).map_err(|error| raise(py, &error))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Starts to read, from `state` or from the beginning.
    #[pyo3(signature = (rank, world_size, lanes=None, state=None, threads=0, sharing=1, even=None, skip=vec![]))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn start(
        &self,
        py: Python<'_>,
        rank: u32,
        world_size: u32,
        lanes: Option<Vec<u32>>,
        state: Option<&[u8]>,
        threads: u32,
        sharing: u32,
        even: Option<&str>,
        skip: Vec<(u64, u64)>,
    ) -> PyResult<Stream> {
        let even = match even {
            None => None,
            Some("drop") => Some(Even::Drop),
            Some("pad") => Some(Even::Pad),
            Some(other) => {
                return Err(PyValueError::new_err(format!("even is {other:?}, expected \"drop\" or \"pad\"")));
            }
        };
        let interrupt = Arc::new(AtomicBool::new(false));
        let (signals, poll) = Signals::polled();
        let options = RunOptions {
            rank,
            world_size,
            lanes,
            threads,
            sharing,
            even,
            skip: skip.into_iter().map(|(start, end)| start..end).collect(),
            interrupt: interrupt.clone(),
            poll: Some(poll),
            ..RunOptions::default()
        };
        let begin = Instant::now() - self.startup;
        let start = || -> Result<Pipeline> {
            let from = state.map(Checkpoint::parse).transpose()?;
            Pipeline::new(self.plan.clone(), self.tokenizer.clone(), options, from.as_ref())
        };
        match py.detach(start) {
            Ok(pipeline) => Ok(Stream::new(pipeline, interrupt, signals, begin)),
            Err(error) => Err(signals.take().unwrap_or_else(|| raise(py, &error))),
        }
    }

    /// The documents of global block `block`, as JSON; see `tokenmill::pipeline::locate`.
    #[pyo3(signature = (block, states=vec![]))]
    fn locate(&self, py: Python<'_>, block: u64, states: Vec<Vec<u8>>) -> PyResult<String> {
        let (signals, poll) = Signals::polled();
        let options = RunOptions { poll: Some(poll), ..RunOptions::default() };
        let find = || -> Result<String> {
            let states = states.iter().map(|state| Checkpoint::parse(state)).collect::<Result<Vec<_>>>()?;
            let parts = pipeline::locate(&self.plan, &self.tokenizer, block, &states, &options)?;
            Ok(serde_json::to_string(&parts).expect("documents are JSON"))
        };
        py.detach(find).map_err(|error| signals.take().unwrap_or_else(|| raise(py, &error)))
    }
}

impl Run {
    fn stores(&self) -> Result<Stores> {
        let config = &self.plan.config;
        Stores::new(&config.storage, config.runtime.memory, &config.base)
    }
}

/// A config with all that was filled in, as JSON; nothing is listed or loaded.
#[pyfunction]
pub fn read_config(py: Python<'_>, text: &str, json: bool, base: PathBuf, overrides: Vec<String>) -> PyResult<String> {
    parse(text, json, base, &overrides).map(|config| json_of(&config)).map_err(|error| raise(py, &error))
}

fn parse(text: &str, json: bool, base: PathBuf, overrides: &[String]) -> Result<Config> {
    match json {
        true => Config::from_table(table_of(text)?, base, overrides),
        false => Config::parse(text, base, overrides),
    }
}

fn json_of(config: &Config) -> String {
    serde_json::to_string(config).expect("a config has string keys and finite numbers only")
}

/// A config's table out of JSON.
fn table_of(json: &str) -> Result<toml::Table> {
    let wrong = |detail: String| Error::new(ErrorKind::Config, detail);
    let value: serde_json::Value = serde_json::from_str(json).map_err(|e| wrong(format!("not a config: {e}")))?;
    match toml::Value::try_from(value).map_err(|e| wrong(format!("not a config: {e}")))? {
        toml::Value::Table(table) => Ok(table),
        other => Err(wrong(format!("the config is a {}, expected a table", other.type_str()))),
    }
}
