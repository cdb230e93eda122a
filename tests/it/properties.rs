//! Random corpora, configs and stop points: whatever is drawn, stops and resumes never show in what is delivered.
//!
//! Method: draw sources (kinds, shards, documents, weights, epochs), windows, spans, lanes, threads, world sizes and stop
//! points; run serially without a stop; run again stopping at each point, each time at another world size and with another
//! number of threads; compare all blocks and the documents with those that were written. A failing case prints its seed.

use proptest::prelude::*;

use crate::corpus::*;
use tokenmill::block::Block;

#[derive(Debug, Clone)]
struct Drawn {
    sources: Vec<(Kind, u64, u64, u64, u32)>,
    block_size: u32,
    span: u64,
    window: u64,
    shuffle: bool,
    stops: Vec<(usize, u32, u32)>,
    pad: bool,
    /// Concatenation, best fit or next fit; documents and tokens packed together.
    packing: (usize, u32, u64),
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let source = (0..ALL_KINDS.len(), 1u64..6, 30u64..90, 10u64..250, 1u32..4)
        .prop_map(|(kind, shards, documents, size, weight)| (ALL_KINDS[kind], shards, documents, size, weight));
    (
        prop::collection::vec(source, 1..4),
        8u32..80,
        200u64..6000,
        60u64..3000,
        any::<bool>(),
        prop::collection::vec((0usize..9, 0u32..3, 0u32..3), 1..6),
        any::<bool>(),
        (0usize..3, 1u32..30, 1u64..3000),
    )
        .prop_map(|(sources, block_size, span, window, shuffle, stops, pad, packing)| Drawn {
            sources,
            block_size,
            span,
            window,
            shuffle,
            stops,
            pad,
            packing,
        })
}

fn check(drawn: &Drawn) {
    const LANES: u32 = 4;
    let mut corpus = Corpus::new();
    for (i, (kind, shards, documents, size, weight)) in drawn.sources.iter().enumerate() {
        let extra = format!("weight = {weight}.0\nmax_epochs = 2");
        corpus = corpus.source(&format!("s{i}"), *kind, *shards, *documents, *size, &extra);
    }
    let head = |batch_size: u32| {
        format!(
            "lanes = {LANES}\nblock_size = {}\nbatch_size = {batch_size}\n[shuffle]\nenabled = {}\nspan = {}\nwindow = {}\n[packing]\ntail = \"{}\"\n\
             strategy = \"{}\"\nwindow = {}\nwindow_tokens = {}\n",
            drawn.block_size,
            drawn.shuffle,
            drawn.span,
            drawn.window,
            if drawn.pad { "pad" } else { "drop" },
            ["concat", "best_fit", "greedy"][drawn.packing.0],
            drawn.packing.1,
            drawn.packing.2
        )
    };
    let mut whole = start(&corpus.plan(&head(LANES)), SERIAL, None).expect("a fresh run");
    let mut expected = Vec::new();
    loop {
        match whole.next_batch() {
            Ok(Some(batch)) => expected.extend(batch.blocks),
            Ok(None) => break,
            // A draw may give a lane nothing: that has to be the error, and there is nothing more to compare.
            Err(error) => {
                assert_eq!(error.kind(), tokenmill::error::ErrorKind::TooFewRecords, "{error}");
                return;
            }
        }
    }
    let mut found = Vec::new();
    let mut state = None;
    let last = (1usize << 20, 1u32, 2u32);
    for (steps, ranks, threads) in drawn.stops.iter().copied().chain([last]) {
        // Lanes end at different steps, so only a single rank has global batches to its last one.
        let world_size = if steps > 100 { 1 } else { 1 << ranks };
        let plan = corpus.plan(&head(LANES / world_size));
        let mut parts = Vec::new();
        let mut blocks_now = Vec::new();
        for rank in 0..world_size {
            let how = How { rank, world_size, threads, delays: None };
            let mut pipeline = start(&plan, how, state.as_ref()).expect("the state fits");
            blocks_now.extend(blocks(&take(&mut pipeline, steps)));
            parts.push((format!("rank {rank}"), stored(&pipeline.checkpoint())));
        }
        blocks_now.sort_by_key(|block| block.index);
        found.extend(blocks_now);
        // Ranks that ended earlier have taken fewer steps.
        state = Some(tokenmill::state::Checkpoint::union(parts).expect("the ranks cover all lanes once"));
    }
    // At the end of a finite run ranks may be some blocks apart; each lane's sequence is the same all the same.
    found.sort_by_key(|block| block.index);
    assert_eq!(found.len(), expected.len());
    assert_eq!(found, expected);
    if drawn.packing.0 > 0 {
        // Parts of a document are apart where it is longer than a block, so tokens are counted, and documents that are whole.
        for (source, documents) in corpus.documents.values().enumerate() {
            let of_source: Vec<_> = found.iter().filter(|block| block.source as usize == source).collect();
            let tokens: usize = of_source.iter().map(|block| block.tokens()).sum();
            assert_eq!(tokens, 2 * documents.iter().map(|document| document.len() + 1).sum::<usize>());
            let size = drawn.block_size as usize;
            let whole = |block: &&Block| {
                let ends = |range: &std::ops::Range<usize>| block.input_ids[range.end - 1] == EOS;
                block.segment_ranges().filter(|(range, segment)| segment.token == 0 && ends(range)).count()
            };
            let short = documents.iter().filter(|document| document.len() < size).count();
            assert_eq!(
                of_source.iter().map(whole).sum::<usize>(),
                2 * short,
                "each document once an epoch, in one block"
            );
        }
    } else if drawn.pad {
        for (source, documents) in corpus.documents.values().enumerate() {
            let mut delivered: Vec<String> = documents_by_lane(&found)
                .into_iter()
                .filter(|((_, s), _)| *s as usize == source)
                .flat_map(|(_, documents)| documents)
                .collect();
            let mut expected = [documents.clone(), documents.clone()].concat();
            delivered.sort();
            expected.sort();
            assert_eq!(delivered, expected, "each document once an epoch");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn stops_never_show(drawn in drawn()) {
        check(&drawn);
    }
}
