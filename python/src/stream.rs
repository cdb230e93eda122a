//! A stream that is running: threads read ahead, and each call gives a batch.
//!
//! Holds: the state is that after the last batch given; what a forked process inherits is never touched, since the threads it would
//! wait for are not in it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tokenmill::error::{ErrorKind, Result};
use tokenmill::pipeline::{Pipeline, Poll};
use tokenmill::report::Meter;

use crate::arrays::{Arrays, Fields};
use crate::error::raise;

/// An exception that a signal handler raised while a wait was going on.
#[derive(Clone, Default)]
pub struct Signals(Arc<Mutex<Option<PyErr>>>);

impl Signals {
    /// Where to look afterwards, and the question that a waiting pipeline asks.
    pub fn polled() -> (Signals, Poll) {
        let signals = Signals::default();
        let asked = signals.clone();
        (signals, Poll(Arc::new(move || asked.arrived())))
    }

    /// Lets Python's signal handlers run; whether one raised.
    fn arrived(&self) -> bool {
        let Err(error) = Python::attach(|py| py.check_signals()) else { return false };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        true
    }

    /// What was raised.
    pub fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

struct Running {
    pipeline: Pipeline,
    meter: Meter,
}

/// A running stream.
#[pyclass(module = "tokenmill._tokenmill", frozen)]
pub struct Stream {
    running: Mutex<Option<Running>>,
    interrupt: Arc<AtomicBool>,
    signals: Signals,
    pid: u32,
}

impl Stream {
    pub fn new(pipeline: Pipeline, interrupt: Arc<AtomicBool>, signals: Signals, begin: Instant) -> Self {
        let meter = Meter::new(begin, &pipeline);
        Stream { running: Mutex::new(Some(Running { pipeline, meter })), interrupt, signals, pid: std::process::id() }
    }

    /// Does something with the pipeline, if it wasn't closed.
    fn with<T: Send>(&self, py: Python<'_>, act: impl FnOnce(&mut Running) -> T + Send) -> PyResult<T> {
        let result = py.detach(|| {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            running.as_mut().map(act)
        });
        result.ok_or_else(|| PyRuntimeError::new_err("the stream is closed"))
    }
}

#[pymethods]
impl Stream {
    /// The next batch, by name: `input_ids`, `labels`, `position_ids`, `segment_ids`, and where asked for `cu_seqlens` and `max_seqlen`;
    /// `None` after the last one.
    fn next<'py>(&self, py: Python<'py>, shift_labels: bool, cu_seqlens: bool) -> PyResult<Option<Bound<'py, PyDict>>> {
        let fields = Fields { shift_labels, cu_seqlens };
        let next = self.with(py, |running| -> Result<Option<Arrays>> {
            let batch = running.pipeline.next_batch()?;
            Ok(batch.map(|batch| {
                running.meter.count(&batch);
                Arrays::new(&batch, fields)
            }))
        })?;
        match next {
            Ok(None) => Ok(None),
            Ok(Some(arrays)) => arrays.into_dict(py).map(Some),
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                Err(self.signals.take().unwrap_or_else(|| raise(py, &error)))
            }
            Err(error) => Err(raise(py, &error)),
        }
    }

    /// The state after the last batch given, as a checkpoint's bytes. Safe in a forked process.
    fn checkpoint<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.with(py, |running| running.pipeline.checkpoint().to_bytes())?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Counts so far, as the JSON of a report.
    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |running| {
            serde_json::to_string(&running.meter.report(&running.pipeline)).expect("a report is JSON")
        })
    }

    /// Batches until the end, if all ranks were made to end together.
    fn batches_left(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.with(py, |running| running.pipeline.end_step().map(|end| end.saturating_sub(running.pipeline.step())))
    }

    /// Ends the stream, and waits for what its threads are at; also for a `next` that another thread is in.
    fn close(&self, py: Python<'_>) {
        if std::process::id() != self.pid {
            return self.abandon();
        }
        self.interrupt.store(true, Ordering::Relaxed);
        py.detach(|| drop(self.running.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }

    /// Forgets a parent's stream in a forked process.
    fn abandon(&self) {
        if let Ok(mut running) = self.running.try_lock() {
            std::mem::forget(running.take());
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if std::process::id() != self.pid {
            self.abandon();
        }
    }
}
