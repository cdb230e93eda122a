//! SIGINT and SIGTERM: the run ends at the next batch, with a checkpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What asks the run to stop.
pub struct Signals {
    /// Set by either signal.
    pub stop: Arc<AtomicBool>,
    which: Arc<AtomicUsize>,
}

impl Signals {
    /// Installs the handlers. A second signal of the same kind ends the process at once.
    pub fn install() -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let which = Arc::new(AtomicUsize::new(0));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, stop.clone())?;
            signal_hook::flag::register_usize(signal, which.clone(), signal as usize)?;
            signal_hook::flag::register(signal, stop.clone())?;
        }
        Ok(Signals { stop, which })
    }

    /// The exit status a signal asks for, once one came.
    pub fn status(&self) -> Option<u8> {
        match self.which.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(128 + signal as u8),
        }
    }
}
