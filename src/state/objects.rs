//! Checkpoints in an object store: put as whole objects, read through a copy of the newest steps.
//!
//! Comes in: an `s3://bucket/prefix`, and a [`Checkpoint`] or a wish to resume. Goes out: an object that is whole or isn't there; the newest
//! step that is complete. Holds: names and rules are those of `files`, which does the choosing: steps are copied to a
//! temporary folder, from the newest on, until it finds a complete one there. Does not know: what the cursors mean.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Checkpoint, Fingerprint, Saved, files};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::Stores;

/// Largest checkpoint that is read.
const OBJECT_MAX: u64 = 1 << 30;
/// Objects that are read side by side.
const AT_ONCE: usize = 16;
/// Steps of a folder in use that are looked at before it is refused, or found to be this run's own.
const STEPS_LOOKED_AT: usize = 8;

/// Writes `checkpoint` below `location`, as [`super::save`] does below a folder.
///
/// # Errors
/// `Write`, naming the object; `Config` for a location that can't be written to.
pub fn save_object(stores: &Stores, location: &str, checkpoint: &Checkpoint) -> Result<Saved> {
    let bytes = checkpoint.to_bytes();
    let name = files::file_name(checkpoint.rank, checkpoint.world_size);
    let object = format!("{}/step-{:08}/{name}", location.trim_end_matches('/'), checkpoint.step);
    let size = bytes.len() as u64;
    stores.put(&object, bytes)?;
    Ok(Saved { path: object.into(), bytes: size })
}

/// Reads what `location` names: a prefix of steps (its newest complete one), a step, or one object.
///
/// # Errors
/// As [`super::load`].
pub fn load_objects(stores: &Stores, location: &str) -> Result<Checkpoint> {
    load_object_files(stores, location).map(|(checkpoint, _)| checkpoint)
}

/// As [`load_objects`], with the objects that were read and their sizes in bytes.
///
/// # Errors
/// As [`super::load`].
pub fn load_object_files(stores: &Stores, location: &str) -> Result<(Checkpoint, Vec<(PathBuf, u64)>)> {
    let location = location.trim_end_matches('/');
    let (above, last) = location.rsplit_once('/').unwrap_or(("", location));
    let (root, wanted) = match (files::step_number(Path::new(last)), last.ends_with(".json")) {
        (Some(_), _) => (above, Some(last.to_owned())),
        (None, true) => match above.rsplit_once('/') {
            Some((root, step)) if files::step_number(Path::new(step)).is_some() => {
                (root, Some(format!("{step}/{last}")))
            }
            _ => {
                let bytes = stores.read_all(location, OBJECT_MAX)?;
                let checkpoint = Checkpoint::parse(&bytes).map_err(|error| error.and(location))?;
                return Ok((checkpoint, vec![(location.into(), bytes.len() as u64)]));
            }
        },
        _ => (location, None),
    };
    let mut steps = steps(stores, root)?;
    if let Some(wanted) = &wanted {
        let step = wanted.split('/').next().unwrap_or(wanted);
        let number = files::step_number(Path::new(step));
        steps.retain(|step, _| Some(*step) <= number);
    }
    if steps.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, format!("no checkpoint at {location}")));
    }
    let copy = Copy::new(stores, root)?;
    let path = wanted.as_ref().map_or(copy.folder.path().to_owned(), |wanted| copy.folder.path().join(wanted));
    let mut result = None;
    for objects in steps.into_values().rev() {
        copy.take(&objects)?;
        // Other ranks' last files may lie in the steps before.
        match files::load_files(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => result = Some(Err(error)),
            found => {
                result = Some(found);
                break;
            }
        }
    }
    let (checkpoint, files) = result.expect("there is a step").map_err(|error| copy.named(error))?;
    let named = |file: PathBuf| {
        let size = std::fs::metadata(&file).map_or(0, |file| file.len());
        let name = file.strip_prefix(copy.folder.path()).unwrap_or(&file);
        (format!("{root}/{}", name.display()).into(), size)
    };
    Ok((checkpoint, files.into_iter().map(named).collect()))
}

/// Reads the checkpoints on both sides of block number `blocks` of `lane`, as [`super::load_around`] does.
///
/// Cost: reads the objects of steps from the newest on, until one lies before.
///
/// # Errors
/// As [`super::load`].
pub fn load_objects_around(stores: &Stores, location: &str, lane: u32, blocks: u64) -> Result<Vec<Checkpoint>> {
    let location = location.trim_end_matches('/');
    let last = location.rsplit_once('/').map_or(location, |(_, last)| last);
    if files::step_number(Path::new(last)).is_some() || last.ends_with(".json") {
        return Ok(vec![load_objects(stores, location)?]);
    }
    let steps = steps(stores, location)?;
    if steps.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, format!("no checkpoint at {location}")));
    }
    let copy = Copy::new(stores, location)?;
    let mut result = Ok(Vec::new());
    for objects in steps.into_values().rev() {
        copy.take(&objects)?;
        // What lacks files of steps before is looked at again with those.
        result = files::load_around(copy.folder.path(), lane, blocks);
        let is_before = |checkpoint: &Checkpoint| {
            let state = checkpoint.cursors.iter().find(|state| state.lane == lane);
            state.is_some_and(|state| state.blocks <= blocks)
        };
        match &result {
            Ok(found) if found.first().is_some_and(is_before) => break,
            Err(error) if error.kind() != ErrorKind::NotFound => break,
            _ => {}
        }
    }
    result.map_err(|error| copy.named(error))
}

/// Checks that a fresh run may write its steps below `location`, as [`super::check_folder`] does for a folder.
///
/// # Errors
/// As [`super::check_folder`].
pub fn check_objects(stores: &Stores, location: &str, run: &Fingerprint, rank: u32, world_size: u32) -> Result<()> {
    let location = location.trim_end_matches('/');
    let steps = steps(stores, location)?;
    if steps.is_empty() {
        return Ok(());
    }
    let copy = Copy::new(stores, location)?;
    for objects in steps.into_values().rev().take(STEPS_LOOKED_AT) {
        copy.take(&objects)?;
    }
    files::check_folder(copy.folder.path(), run, rank, world_size).map_err(|error| copy.named(error))
}

/// The objects of each step below `root`.
fn steps(stores: &Stores, root: &str) -> Result<BTreeMap<u64, Vec<String>>> {
    let below = format!("{root}/");
    let mut steps: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for (object, _) in stores.list_below(&format!("{below}step-"))? {
        let Some((step, name)) = object.strip_prefix(&below).and_then(|rest| rest.split_once('/')) else { continue };
        if let Some(number) = files::step_number(Path::new(step))
            && files::file_ranks(Path::new(name)).is_some()
        {
            steps.entry(number).or_default().push(object.clone());
        }
    }
    Ok(steps)
}

/// A temporary folder with what was copied of a root.
struct Copy<'a> {
    stores: &'a Stores,
    root: &'a str,
    folder: tempfile::TempDir,
}

impl<'a> Copy<'a> {
    fn new(stores: &'a Stores, root: &'a str) -> Result<Copy<'a>> {
        let folder = tempfile::tempdir()
            .map_err(|error| Error::new(ErrorKind::Write, "can't make a temporary folder").because(error))?;
        Ok(Copy { stores, root, folder })
    }

    fn take(&self, objects: &[String]) -> Result<()> {
        for some in objects.chunks(AT_ONCE) {
            std::thread::scope(|scope| {
                let tasks: Vec<_> = some.iter().map(|object| scope.spawn(|| self.take_one(object))).collect();
                tasks.into_iter().try_for_each(|task| {
                    task.join()
                        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "reading a checkpoint panicked")))
                })
            })?;
        }
        Ok(())
    }

    fn take_one(&self, object: &str) -> Result<()> {
        let bytes = self.stores.read_all(object, OBJECT_MAX)?;
        let path = self.folder.path().join(object[self.root.len()..].trim_start_matches('/'));
        let write = || {
            std::fs::create_dir_all(path.parent().expect("it lies in a step's folder"))?;
            std::fs::write(&path, bytes)
        };
        write().map_err(|error| Error::new(ErrorKind::Write, format!("can't copy {object}")).because(error))
    }

    /// The error with the objects' names in place of those of the copy.
    fn named(&self, error: Error) -> Error {
        error.reworded(|detail| detail.replace(&*self.folder.path().to_string_lossy(), self.root))
    }
}
