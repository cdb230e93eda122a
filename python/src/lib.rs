//! The extension module under the package `tokenmill`: a run that can be started anywhere, and a stream that is running.
//!
//! Comes in: a config as text, places in the run. Goes out: batches as numpy arrays, states as the bytes of a checkpoint.
//! Holds: no thread runs before a stream is begun; the interpreter lock is not held while anything is waited for or
//! read; signals are looked at while waiting. Does not know: ranks of frameworks, PyTorch; see the Python files.

mod arrays;
mod error;
mod logging;
mod run;
mod stream;

use pyo3::prelude::*;

// Blocks are built and given away by the megabyte: glibc's allocator would map and unmap each.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[pymodule]
fn _tokenmill(module: &Bound<'_, PyModule>) -> PyResult<()> {
    logging::install();
    // Now, since where numpy's functions are looked up later a Ctrl-C may come in between.
    drop(numpy::PyArray1::<i64>::zeros(module.py(), 0, false));
    module.add_class::<run::Run>()?;
    module.add_class::<stream::Stream>()?;
    module.add_function(wrap_pyfunction!(logging::take_log, module)?)?;
    module.add_function(wrap_pyfunction!(run::read_config, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
