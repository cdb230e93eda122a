//! Checkpoints as files: written beside, synced, renamed; read as the union of a step's ranks.
//!
//! Comes in: a [`Checkpoint`] and a folder, or a path to resume from. Goes out: a file that is whole or isn't there; the
//! newest step that is complete. Holds: a reader never sees half a file; a step counts only when the files of all its
//! ranks are there. Does not know: what the cursors mean.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::{Checkpoint, assemble, lane_list, run_differences};
use crate::error::{Error, ErrorKind, Result};

/// Largest checkpoint file that is read.
const FILE_MAX: u64 = 1 << 30;

/// A checkpoint that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Writes `checkpoint` to `folder/step-SSSSSSSS/rank-RRRRR-of-WWWWW.json`.
///
/// Cost: one write, two syncs. A crash at any moment leaves the old file, the new one, or a `.tmp` that nobody reads.
///
/// # Errors
/// `Write`, naming the path.
pub fn save(folder: &Path, checkpoint: &Checkpoint) -> Result<Saved> {
    let step = folder.join(format!("step-{:08}", checkpoint.step));
    let name = file_name(checkpoint.rank, checkpoint.world_size);
    let path = step.join(&name);
    let beside = step.join(format!(".{name}.tmp"));
    let bytes = checkpoint.to_bytes();
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(&step)?;
        let mut file = File::create(&beside)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        drop(file);
        fs::rename(&beside, &path)?;
        File::open(&step)?.sync_all()?;
        File::open(folder)?.sync_all()
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&beside);
        Error::new(ErrorKind::Write, format!("can't write the checkpoint {}", path.display())).because(error)
    })?;
    Ok(Saved { path, bytes: bytes.len() as u64 })
}

/// Reads what `path` names: a folder of steps (its newest complete one), a step's folder, or one file (with the other
/// ranks' files beside it; a file that isn't named as [`save`] does stands alone).
///
/// A rank that had delivered all of its lanes wrote its last file at an earlier step than the others: that file counts for
/// all steps after it. Steps that lack files are passed over, with a warning; damaged files never are.
///
/// # Errors
/// `NotFound` when there is none or none is complete, naming lanes that are missing and the files that were seen;
/// `StateMismatch` for files that are damaged, or don't belong to each other or to their names.
pub fn load(path: &Path) -> Result<Checkpoint> {
    load_files(path).map(|(checkpoint, _)| checkpoint)
}

/// As [`load`], with the files that were read.
///
/// # Errors
/// As [`load`].
pub fn load_files(path: &Path) -> Result<(Checkpoint, Vec<PathBuf>)> {
    let kind = fs::metadata(path).map_err(|error| {
        Error::new(ErrorKind::NotFound, format!("no checkpoint at {}", path.display())).because(error)
    })?;
    if kind.is_file() {
        let Some((_, world_size)) = file_ranks(path) else {
            return Ok((read(path)?, vec![path.to_path_buf()]));
        };
        let step = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        return match find_ranks(step, world_size, &steps_before(step)?)? {
            Ok(files) => union(step, &files),
            Err(lacks) => Err(incomplete(path, &[lacks])),
        };
    }
    if !rank_files(path)?.is_empty() {
        return newest_complete(path, &[path.to_path_buf()], &steps_before(path)?);
    }
    let mut steps: Vec<PathBuf> = step_folders(path)?;
    steps.reverse();
    newest_complete(path, &steps, &steps)
}

/// Reads the checkpoints on both sides of block number `blocks` of `lane`: the newest at which the lane had not delivered more than
/// that, and the oldest at which it had, in this order, as far as there are any. A path that names one checkpoint gives it alone.
///
/// Cost: reads the files of complete steps from the newest on, until one lies before.
///
/// # Errors
/// As [`load`].
pub fn load_around(path: &Path, lane: u32, blocks: u64) -> Result<Vec<Checkpoint>> {
    if !path.is_dir() || !rank_files(path)?.is_empty() {
        return Ok(vec![load(path)?]);
    }
    // What is wrong with the folder as a whole is said as for a resume.
    let newest = load(path)?;
    let mut after = None;
    let mut steps = step_folders(path)?;
    steps.reverse();
    for step in &steps {
        let checkpoint = match step.ends_with(format!("step-{:08}", newest.step)) {
            true => newest.clone(),
            false => match newest_complete(step, std::slice::from_ref(step), &steps) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                found => found?.0,
            },
        };
        let delivered = checkpoint.cursors.iter().find(|state| state.lane == lane).map(|state| state.blocks);
        if delivered.is_some_and(|delivered| delivered <= blocks) {
            return Ok([Some(checkpoint), after].into_iter().flatten().collect());
        }
        after = Some(checkpoint);
    }
    Ok(after.into_iter().collect())
}

/// Checks that rank `rank` of `world_size` of a run that starts afresh may write its steps to `folder`: no step beyond the
/// first may be there, or a later resume would take an old run's newest step for this run's. What other ranks of this
/// run have written already, having started sooner, is no such step.
///
/// # Errors
/// `StateMismatch` naming the newest step, and how it differs from `run` if it does.
pub fn check_folder(folder: &Path, run: &super::Fingerprint, rank: u32, world_size: u32) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    for step in step_folders(folder)?.iter().rev() {
        let files = rank_files(step)?;
        // This rank's own file, another world size's, or for its run any one.
        let telling = files.iter().find(|file| file.world_size != world_size || file.rank == rank).or(files.first());
        let Some(file) = telling else { continue };
        let found = read(&file.path)?;
        let differences = run.differences(&found.fingerprint);
        let others = file.world_size == world_size && file.rank != rank;
        if differences.is_empty() && (found.step == 0 || others) {
            continue;
        }
        let of = match differences.is_empty() {
            true => "this run".to_owned(),
            false => format!("another run ({})", differences.join("; ")),
        };
        return Err(Error::new(
            ErrorKind::StateMismatch,
            format!(
                "{} holds checkpoints of {of} up to step {}; a fresh run needs an empty folder, or --resume to go on",
                folder.display(),
                found.step
            ),
        ));
    }
    Ok(())
}

#[derive(Debug, Clone)]
struct RankFile {
    path: PathBuf,
    rank: u32,
    world_size: u32,
}

/// `(rank, world size)` out of `rank-00002-of-00004.json`.
pub(super) fn file_ranks(path: &Path) -> Option<(u32, u32)> {
    let (rank, world_size) =
        path.file_name()?.to_str()?.strip_prefix("rank-")?.strip_suffix(".json")?.split_once("-of-")?;
    Some((rank.parse().ok()?, world_size.parse().ok()?))
}

pub(super) fn file_name(rank: u32, world_size: u32) -> String {
    format!("rank-{rank:05}-of-{world_size:05}.json")
}

/// The number out of `step-00000100`.
pub(super) fn step_number(folder: &Path) -> Option<u64> {
    folder.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok()
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let list = || -> std::io::Result<Vec<PathBuf>> { fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect() };
    let mut list =
        list().map_err(|e| Error::new(ErrorKind::Read, format!("can't list {}", folder.display())).because(e))?;
    list.sort();
    Ok(list)
}

fn rank_files(folder: &Path) -> Result<Vec<RankFile>> {
    Ok(entries(folder)?
        .into_iter()
        .filter_map(|path| file_ranks(&path).map(|(rank, world_size)| RankFile { path, rank, world_size }))
        .collect())
}

fn step_folders(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut steps: Vec<(u64, PathBuf)> =
        entries(folder)?.into_iter().filter_map(|path| step_number(&path).map(|n| (n, path))).collect();
    steps.sort();
    Ok(steps.into_iter().map(|(_, path)| path).collect())
}

/// The step folders beside `step` of lower numbers, newest first.
fn steps_before(step: &Path) -> Result<Vec<PathBuf>> {
    // Through the full path, since "." has neither a name nor a parent.
    let Ok(full) = step.canonicalize() else { return Ok(Vec::new()) };
    let (Some(number), Some(parent)) = (step_number(&full), full.parent()) else { return Ok(Vec::new()) };
    let mut steps = step_folders(parent)?;
    steps.retain(|path| step_number(path).is_some_and(|n| n < number));
    steps.reverse();
    Ok(steps)
}

/// The files of all `world_size` ranks at `step`, or what is missing, in words. A rank that isn't there counts with its last
/// file of the steps in `before`, newest first, if all its lanes had ended then.
fn find_ranks(step: &Path, world_size: u32, before: &[PathBuf]) -> Result<std::result::Result<Vec<RankFile>, String>> {
    let mut files: BTreeMap<u32, RankFile> =
        rank_files(step)?.into_iter().filter(|f| f.world_size == world_size).map(|f| (f.rank, f)).collect();
    let number = step_number(step).or_else(|| step_number(&step.canonicalize().ok()?));
    let mut missing = Vec::new();
    let mut reference = None;
    for rank in 0..world_size {
        if files.contains_key(&rank) {
            continue;
        }
        let earlier = before.iter().filter(|path| number.is_none_or(|n| step_number(path).is_some_and(|m| m < n)));
        let last = earlier.map(|path| path.join(file_name(rank, world_size))).find(|path| path.is_file());
        // A damaged file here proves nothing, so the step stays incomplete.
        let ended = missing.is_empty().then_some(last).flatten().filter(|path| {
            let reference =
                reference.get_or_insert_with(|| files.values().next().and_then(|file| read(&file.path).ok()));
            let part = read(path).ok().filter(Checkpoint::ended);
            part.zip(reference.as_ref()).is_some_and(|(part, reference)| run_differences(&part, reference).is_empty())
        });
        match ended {
            Some(path) => drop(files.insert(rank, RankFile { path, rank, world_size })),
            None => missing.push(rank),
        }
    }
    if missing.is_empty() {
        return Ok(Ok(files.into_values().collect()));
    }
    let reference = reference.unwrap_or_else(|| files.values().next().and_then(|file| read(&file.path).ok()));
    let lacks = match reference {
        Some(reference) => {
            let mut lanes: Vec<u32> =
                missing.iter().flat_map(|&rank| (rank..reference.lanes).step_by(world_size as usize)).collect();
            lanes.sort_unstable();
            format!("lanes {} are not covered", lane_list(&lanes))
        }
        None => format!("ranks {} of {world_size} are missing", lane_list(&missing)),
    };
    Ok(Err(format!("in {}, {lacks}: found {}", step.display(), names(&files.into_values().collect::<Vec<_>>()))))
}

fn names(files: &[RankFile]) -> String {
    const SHOWN: usize = 16;
    let name = |file: &RankFile| file_name(file.rank, file.world_size);
    let list: Vec<String> = files.iter().take(SHOWN).map(name).collect();
    match files.len().saturating_sub(SHOWN) {
        0 if list.is_empty() => "no file of a rank".into(),
        0 => list.join(", "),
        more => format!("{} and {more} more", list.join(", ")),
    }
}

fn incomplete(path: &Path, seen: &[String]) -> Error {
    const SHOWN: usize = 8;
    let mut text = seen[..seen.len().min(SHOWN)].join("; ");
    if seen.is_empty() {
        text = "no step was found".into();
    } else if seen.len() > SHOWN {
        text += &format!("; and {} more steps", seen.len() - SHOWN);
    }
    Error::new(
        ErrorKind::NotFound,
        format!("no complete checkpoint at {}: {text}; expected the files of all ranks of a step", path.display()),
    )
}

/// The first of `steps` (newest first) of which some world size's files are all there.
fn newest_complete(path: &Path, steps: &[PathBuf], before: &[PathBuf]) -> Result<(Checkpoint, Vec<PathBuf>)> {
    let mut seen = Vec::new();
    for step in steps {
        let mut world_sizes: Vec<u32> = rank_files(step)?.iter().map(|file| file.world_size).collect();
        world_sizes.sort_unstable();
        world_sizes.dedup();
        let mut complete: Option<(Checkpoint, Vec<PathBuf>)> = None;
        let mut lacking = Vec::new();
        for &world_size in &world_sizes {
            let files = match find_ranks(step, world_size, before)? {
                Ok(files) => files,
                Err(lacks) => {
                    lacking.push(lacks);
                    continue;
                }
            };
            let found = union(step, &files)?;
            if let Some((other, _)) = &complete
                && (&other.cursors, &other.mixture) != (&found.0.cursors, &found.0.mixture)
            {
                return Err(Error::new(
                    ErrorKind::StateMismatch,
                    format!(
                        "{} has complete checkpoints of {} and of {world_size} ranks, which differ; expected one, or --resume \
                         with a file of the one that is meant",
                        step.display(),
                        other.world_size
                    ),
                ));
            }
            complete = complete.or(Some(found));
        }
        if let Some(complete) = complete {
            for lacks in &seen {
                tracing::warn!("an incomplete checkpoint is passed over: {lacks}");
            }
            return Ok(complete);
        }
        if world_sizes.is_empty() {
            lacking.push(format!("in {}, found no file of a rank", step.display()));
        }
        seen.extend(lacking);
    }
    Err(incomplete(path, &seen))
}

/// Reads the files and joins them; all that is wrong with them is one error.
fn union(step: &Path, files: &[RankFile]) -> Result<(Checkpoint, Vec<PathBuf>)> {
    let mut problems = Vec::new();
    let mut parts = Vec::new();
    let mut first_error: Option<Error> = None;
    for file in files {
        let part = match read(&file.path) {
            Ok(part) => part,
            Err(error) => {
                problems.push(error.detail().to_owned());
                first_error.get_or_insert(error);
                continue;
            }
        };
        let folder = file.path.parent().and_then(step_number).unwrap_or(part.step);
        if (part.rank, part.world_size, part.step) != (file.rank, file.world_size, folder) {
            problems.push(format!(
                "{} holds step {}, rank {} of {}, expected step {folder}, rank {} of {} as its name says",
                file.path.display(),
                part.step,
                part.rank,
                part.world_size,
                file.rank,
                file.world_size
            ));
        }
        parts.push((file.path.display().to_string(), part));
    }
    let found = parts.len();
    match assemble(parts, problems, true) {
        Ok(whole) => Ok((whole, files.iter().map(|file| file.path.clone()).collect())),
        Err(error) => {
            let whole = match found {
                // Nothing could be read, so which lanes are missing isn't known.
                0 => Error::new(error.kind(), format!("{}; found {}", error.detail(), names(files))),
                _ => error,
            };
            let kind = first_error.as_ref().map_or(whole.kind(), Error::kind);
            let detail =
                format!("{} (in {}; to go on from an earlier step, name its folder)", whole.detail(), step.display());
            let named = Error::new(kind, detail);
            Err(match first_error.as_ref().and_then(std::error::Error::source) {
                Some(source) => named.because(std::io::Error::other(source.to_string())),
                None => named,
            })
        }
    }
}

fn read(path: &Path) -> Result<Checkpoint> {
    let fail =
        |error| Error::new(ErrorKind::Read, format!("can't read the checkpoint {}", path.display())).because(error);
    let mut bytes = Vec::new();
    File::open(path).map_err(fail)?.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > FILE_MAX {
        let detail = format!("the checkpoint {} is larger than {FILE_MAX} bytes", path.display());
        return Err(Error::new(ErrorKind::Limit, detail));
    }
    Checkpoint::parse(&bytes).map_err(|error| {
        let named = Error::new(error.kind(), format!("{} (in {})", error.detail(), path.display()));
        match std::error::Error::source(&error) {
            Some(source) => named.because(std::io::Error::other(source.to_string())),
            None => named,
        }
    })
}
