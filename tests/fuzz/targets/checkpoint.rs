//! Checkpoints: any bytes, and a sound one with numbers or text changed: an error, or a run that goes on or ends with one; never a panic.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tokenmill::pipeline::{Pipeline, RunOptions};
use tokenmill::plan::Plan;
use tokenmill::state::Checkpoint;
use tokenmill::tokenizer::Tokenizer;

struct Run {
    plan: Arc<Plan>,
    tokenizer: Arc<Tokenizer>,
    bytes: Vec<u8>,
    checkpoint: Value,
}

static RUN: LazyLock<Run> = LazyLock::new(|| {
    let (plan, tokenizer, checkpoint) = tokenmill_fuzz::run();
    let bytes = checkpoint.to_bytes();
    let checkpoint = serde_json::from_slice(&bytes).expect("a checkpoint is JSON");
    Run { plan, tokenizer, bytes, checkpoint }
});

/// Sets the numbers of `value` that `edits` names, by their index, to what it says; gives the next index.
fn edit(value: &mut Value, edits: &[(u16, u64)], index: &mut u16) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|value| edit(value, edits, index)),
        Value::Object(map) => map.values_mut().for_each(|value| edit(value, edits, index)),
        Value::Number(_) => {
            if let Some((_, number)) = edits.iter().find(|(at, _)| at == index) {
                *value = (*number).into();
            }
            *index += 1;
        }
        _ => {}
    }
}

fuzz_target!(|data: &[u8]| {
    let run = &*RUN;
    let edited;
    let bytes = match data.split_first() {
        // Edits: a byte for the number's index, and one, two or eight bytes of number.
        Some((0, mut rest)) => {
            let mut edits = Vec::new();
            while let [at, size, more @ ..] = rest {
                let size = [1, 2, 4, 8][usize::from(size & 3)];
                let Some((number, more)) = more.split_at_checked(size) else { break };
                let mut bytes = [0; 8];
                bytes[..size].copy_from_slice(number);
                edits.push((u16::from(*at), u64::from_le_bytes(bytes)));
                rest = more;
            }
            let mut checkpoint = run.checkpoint.clone();
            edit(&mut checkpoint, &edits, &mut 0);
            edited = serde_json::to_vec(&checkpoint).expect("a checkpoint is JSON");
            &edited[..]
        }
        // Splices: two bytes for the place in the text, one for how many bytes go there.
        Some((1, mut rest)) => {
            let mut text = run.bytes.clone();
            while let [low, high, size, more @ ..] = rest {
                let Some((bytes, more)) = more.split_at_checked(usize::from(size & 15)) else { break };
                let at = usize::from(u16::from_le_bytes([*low, *high])) % text.len();
                let end = (at + bytes.len()).min(text.len());
                text.splice(at..end, bytes.iter().copied());
                rest = more;
            }
            edited = text;
            &edited[..]
        }
        _ => data,
    };
    let Ok(checkpoint) = Checkpoint::parse(bytes) else { return };
    assert_eq!(Checkpoint::parse(&checkpoint.to_bytes()).expect("what is written can be read"), checkpoint);
    let twice = vec![("a".to_owned(), checkpoint.clone()), ("b".to_owned(), checkpoint.clone())];
    assert!(Checkpoint::union(twice).is_err() || checkpoint.cursors.is_empty());
    let options = RunOptions { serial: true, ..RunOptions::default() };
    let resumed = Pipeline::new(run.plan.clone(), run.tokenizer.clone(), options, Some(&checkpoint));
    let Ok(mut pipeline) = resumed else { return };
    for _ in 0..4 {
        if !matches!(pipeline.pass_over(), Ok(false)) || !matches!(pipeline.next_batch(), Ok(Some(_))) {
            break;
        }
    }
    pipeline.stats();
    Checkpoint::parse(&pipeline.checkpoint().to_bytes()).expect("a run's state can be read");
});
