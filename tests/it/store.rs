//! A store of local files that misbehaves on demand, and a bound on how long a test may take.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use tokenmill::error::{Error, ErrorKind, Result};
use tokenmill::plan::Plan;
use tokenmill::storage::{Listed, LocalStore, Object, Store};

use crate::corpus::Corpus;

/// What a read does instead of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Nothing,
    Fails,
    /// Gives a byte less than it should.
    Short,
    Panics,
    /// Never returns.
    Blocks,
}

/// Local files; read number `nth` of those whose location holds `of` has the fault, and with `ever_after` all later ones too.
#[derive(Debug)]
pub struct Faulty {
    pub fault: Fault,
    pub nth: u64,
    pub ever_after: bool,
    pub of: &'static str,
    pub reads: AtomicU64,
}

impl Faulty {
    pub fn new(fault: Fault, nth: u64) -> Arc<Faulty> {
        Arc::new(Faulty { fault, nth, ever_after: false, of: "", reads: AtomicU64::new(0) })
    }
}

#[derive(Debug)]
struct Shared(Arc<Faulty>);

struct FaultyObject {
    object: Arc<dyn Object>,
    store: Arc<Faulty>,
    counts: bool,
}

impl Store for Shared {
    fn list(&self, patterns: &[String], base: &Path) -> Result<Vec<Listed>> {
        LocalStore.list(patterns, base)
    }

    fn open(&self, location: &str) -> Result<Arc<dyn Object>> {
        let object = LocalStore.open(location)?;
        Ok(Arc::new(FaultyObject { object, store: self.0.clone(), counts: location.contains(self.0.of) }))
    }
}

impl Object for FaultyObject {
    fn size(&self) -> u64 {
        self.object.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let store = &self.store;
        if self.counts {
            let number = store.reads.fetch_add(1, Ordering::SeqCst);
            if number == store.nth || store.ever_after && number > store.nth {
                match store.fault {
                    Fault::Nothing => {}
                    Fault::Fails => return Err(Error::new(ErrorKind::Read, "the disk is on fire")),
                    Fault::Short => return Ok(self.object.read_at(offset, buf)?.saturating_sub(1)),
                    // Without the message that a panic prints.
                    Fault::Panics => std::panic::resume_unwind(Box::new("a test's object panics")),
                    Fault::Blocks => {
                        let (mutex, forever) = (Mutex::new(()), Condvar::new());
                        let mut guard = mutex.lock().expect("ours alone");
                        loop {
                            guard = forever.wait(guard).expect("ours alone");
                        }
                    }
                }
            }
        }
        self.object.read_at(offset, buf)
    }
}

/// The corpus' plan over a faulty store.
pub fn plan(corpus: &Corpus, head: &str, store: &Arc<Faulty>) -> Arc<Plan> {
    let store = Arc::new(Shared(store.clone()));
    Arc::new(Plan::with_store(&corpus.config(head), store).expect("the sources are there"))
}

/// Runs `test` in a thread of its own; fails when it takes longer than `seconds`.
pub fn within(seconds: u64, test: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = sender.send(());
    });
    match receiver.recv_timeout(Duration::from_secs(seconds)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs: no end after {seconds} s"),
        _ => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}
