//! Fast equals naive: blocks against a packer of a few lines, ids against Hugging Face's crate.

use crate::corpus::*;

/// With one lane and no shuffling the stream is the documents in the order of the files: pack those naively.
#[test]
fn blocks_equal_a_naive_packer() {
    for kind in ALL_KINDS {
        let corpus = Corpus::new().source("a", kind, 1, 150, 200, "max_epochs = 3");
        let head =
            "lanes = 1\nblock_size = 70\nbatch_size = 5\n[shuffle]\nenabled = false\nspan = 3000\nwindow = 700\n";
        let found =
            blocks(&take_all(&mut start(&corpus.plan(head), How { threads: 2, ..SERIAL }, None).expect("a fresh run")));
        let mut stream: Vec<(u32, usize)> = Vec::new();
        for (number, document) in corpus.documents["a"].iter().cycle().take(450).enumerate() {
            stream.extend(document.bytes().map(|byte| (u32::from(byte), number)));
            stream.push((EOS, number));
        }
        assert_eq!(found.len(), stream.len() / 70, "{kind:?}");
        for (block, expected) in found.iter().zip(stream.chunks_exact(70)) {
            let ids: Vec<u32> = expected.iter().map(|(id, _)| *id).collect();
            let segments: Vec<u32> = expected.iter().map(|(_, n)| (n - expected[0].1) as u32 + 1).collect();
            let mut positions = Vec::new();
            for (i, (_, number)) in expected.iter().enumerate() {
                let restart = i == 0 || expected[i - 1].1 != *number;
                positions.push(if restart { 0 } else { positions[i - 1] + 1 });
            }
            assert_eq!(
                (block.input_ids.clone(), block.segment_ids(), block.position_ids()),
                (ids, segments, positions)
            );
        }
    }
}

/// A finite run's tail: dropped and counted, or padded with segment 0.
#[test]
fn tails_are_dropped_or_padded() {
    let corpus = Corpus::new().source("a", Kind::Jsonl, 1, 20, 100, "max_epochs = 1");
    let tokens: usize = corpus.documents["a"].iter().map(|d| d.len() + 1).sum();
    let run = |tail: &str| {
        let head = format!("lanes = 1\nblock_size = 64\nbatch_size = 4\n[packing]\ntail = \"{tail}\"\n");
        let mut pipeline = start(&corpus.plan(&head), SERIAL, None).expect("a fresh run");
        let batches = take_all(&mut pipeline);
        (blocks(&batches), pipeline.stats()[0].totals)
    };
    assert_ne!(tokens % 64, 0, "the corpus leaves a tail");
    let (dropped, totals) = run("drop");
    assert_eq!(
        (dropped.len(), totals.dropped_tokens as usize, totals.tokens as usize),
        (tokens / 64, tokens % 64, tokens / 64 * 64)
    );
    let (padded, totals) = run("pad");
    assert_eq!(
        (padded.len(), totals.padding as usize, totals.tokens as usize),
        (tokens / 64 + 1, 64 - tokens % 64, tokens)
    );
    let last = padded.last().expect("there are blocks");
    assert_eq!(last.tokens(), tokens % 64);
    assert!(last.segment_ids()[tokens % 64..].iter().all(|&id| id == 0));
    assert!(last.input_ids[tokens % 64..].iter().all(|&id| id == 258), "the pad token of `bytes`");
}

/// Ids of the pipeline with a real vocabulary equal those of tiktoken's own code, document by document.
#[test]
fn ids_equal_tiktoken() {
    let corpus = Corpus::new().source("a", Kind::Jsonl, 2, 200, 3000, "max_epochs = 1");
    let head =
        "lanes = 2\nblock_size = 256\nbatch_size = 4\n[packing]\ntail = \"pad\"\n[tokenizer]\npath = \"cl100k_base\"\n";
    let found =
        blocks(&take_all(&mut start(&corpus.plan(head), How { threads: 2, ..SERIAL }, None).expect("a fresh run")));
    let reference = tiktoken_rs::cl100k_base().expect("the vocabulary is in the crate");
    let mut expected: Vec<Vec<u32>> = corpus.documents["a"]
        .iter()
        .map(|text| reference.encode_ordinary(text).into_iter().chain([100_257]).collect())
        .collect();
    let mut ids: Vec<Vec<u32>> = Vec::new();
    for lane in 0..2 {
        let stream = found.iter().filter(|b| b.lane == lane).flat_map(|b| b.input_ids[..b.tokens()].iter().copied());
        let stream: Vec<u32> = stream.collect();
        ids.extend(stream.split_inclusive(|id| *id == 100_257).map(<[u32]>::to_vec));
    }
    expected.sort();
    ids.sort();
    assert_eq!(ids, expected);
}
