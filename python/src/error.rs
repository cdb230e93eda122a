//! Errors of the library as exceptions.

use pyo3::prelude::*;
use tokenmill::error::Error;

/// `error` as a `tokenmill.Error`, with its parts as attributes and its causes in the text.
pub fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(below) = cause {
        text += &format!(": {below}");
        cause = below.source();
    }
    let place = error.place();
    let build = || -> PyResult<Bound<'_, PyAny>> {
        let class = py.import("tokenmill._error")?.getattr("Error")?;
        class.call1((text, error.kind().name(), place.shard.as_deref(), place.record, place.byte))
    };
    match build() {
        Ok(exception) => PyErr::from_value(exception),
        Err(other) => other,
    }
}
