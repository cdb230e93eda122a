//! What the library logs, for Python's `logging`.
//!
//! Comes in: events of `tracing`, from any thread. Goes out: a list that Python takes when it next calls. Holds: no thread of the
//! pipeline waits for the interpreter; at most [`KEPT_MAX`] messages are kept, and how many were lost is said.
//!
//! Why not call Python's logging where the event happens: a worker that waits for the interpreter lock, while the thread that
//! holds it waits for the worker, hangs.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

const KEPT_MAX: usize = 1000;

/// `(level as Python numbers them, logger's name, text)`.
type Record = (u8, String, String);

struct Kept {
    records: VecDeque<Record>,
    lost: u64,
}

static KEPT: Mutex<Kept> = Mutex::new(Kept { records: VecDeque::new(), lost: 0 });

struct Keep;

impl<S: Subscriber> Layer<S> for Keep {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || !metadata.target().starts_with("tokenmill") {
            return;
        }
        let level = match *metadata.level() {
            Level::ERROR => 40,
            Level::WARN => 30,
            _ => 20,
        };
        let mut text = Text::default();
        event.record(&mut text);
        let record = (level, metadata.target().replace("::", "."), text.message + &text.fields);
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.records.len() == KEPT_MAX {
            kept.records.pop_front();
            kept.lost += 1;
        }
        kept.records.push_back(record);
    }
}

/// An event in words: its message, then ` key=value` for each field.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// Keeps events from here on. Another library's subscriber in this process stays.
pub fn install() {
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Keep));
}

/// The messages since the last call.
#[pyfunction]
pub fn take_log() -> Vec<Record> {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let mut records: Vec<Record> = kept.records.drain(..).collect();
    if kept.lost > 0 {
        records.push((30, "tokenmill".into(), format!("{} earlier messages were lost", kept.lost)));
        kept.lost = 0;
    }
    records
}
