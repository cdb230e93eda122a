//! Which source gives a lane's next block: shares by integer weights, exact to one block, without luck.
//!
//! Comes in: integer weights, the lane, the number of blocks so far. Goes out: the source of the next block.
//! Holds: after every block n of a stage and for every source i, `|blocks_i - n * weight_i / sum| <= 1`. No random
//! numbers, no floats. Does not know: what a source is.
//!
//! The rule is R. Tijdeman's for the chairman assignment problem ("The chairman assignment problem", Discrete
//! Mathematics 32, 1980): among the sources that are owed at least `1/(2k-2)` of a block, take the one whose deadline
//! (the block after which it would be owed more than `1 - 1/(2k-2)`) comes first; that keeps every source within
//! `1 - 1/(2k-2)` of its share. Deadlines are whole blocks, so ties are many and may be broken at will.
//!
//! The lanes must not all draw from the same source at the same time, or a global batch would be of one source. So
//! lane l breaks ties starting from another source, and starts with small debts and credits of its own (at most
//! `1/(2k-2)` each, summing to nothing), which the bound has room for. Why not random draws: their error grows
//! with the square root of the blocks. Why not one offset into one sequence for each lane: its error is that of two
//! prefixes, up to two blocks.
//!
//! ```text
//! weights 3 : 1    lane 0:  A A B A  A A B A      lane 1:  B A A A  B A A A
//! ```

use serde::{Deserialize, Serialize};

/// A lane's place in its schedule: blocks given by each source since the stage began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageCounts {
    /// The lane's block number at which the stage began.
    pub from_block: u64,
    /// Blocks each source has given since, in the order of the sources.
    pub blocks: Vec<u64>,
}

/// Weight units in 1.0: config weights are rounded to a millionth.
pub const WEIGHT_UNIT: f64 = 1e6;

/// The source that gives the lane's next block, or `None` when no source has weight.
///
/// `weights[i]` is 0 for a source that is switched off or has left. Cost: O(sources).
pub fn next_source(weights: &[u64], lane: u32, counts: &StageCounts) -> Option<usize> {
    let active: Vec<usize> = (0..weights.len()).filter(|&i| weights[i] > 0).collect();
    let k = active.len();
    if k < 2 {
        return active.first().copied();
    }
    let total: i128 = active.iter().map(|&i| weights[i] as i128).sum();
    let scale = 2 * k as i128 - 2;
    let n = active.iter().map(|&i| counts.blocks[i] as i128).sum::<i128>() + 1;
    let credits = credits(k, total, lane);
    let mut best: Option<(i128, usize)> = None;
    for turn in 0..k {
        // Ties go to the first in this lane's own rotation of the sources.
        let slot = (turn + lane as usize) % k;
        let i = active[slot];
        let weight = weights[i] as i128;
        let given = counts.blocks[i] as i128 * total;
        // All in units of 1 / (sum of weights * scale * 2^16) of a block.
        let owed = ((weight * n - given) << 16) + credits[slot];
        if scale * owed < total << 16 {
            continue;
        }
        let room = (((scale - 1) * total) << 16) + scale * ((given << 16) - credits[slot]);
        let deadline = room.div_euclid((scale * weight) << 16);
        if best.is_none_or(|(earliest, _)| deadline < earliest) {
            best = Some((deadline, i));
        }
    }
    Some(best.expect("the debts sum to one block, so one source is owed at least 1/k of it").1)
}

/// What each active source is owed before the first block of a stage, in units of 2^-16 / (sum of weights) of a block.
///
/// Each neighbouring pair trades an amount that depends on the lane, so the amounts sum to nothing. |credit| stays
/// within `1/(2k-2)` of a block.
fn credits(k: usize, total: i128, lane: u32) -> Vec<i128> {
    // Odd multipliers without a common pattern, so that the pairs' phases don't move together.
    const STEPS: [u32; 4] = [0x9E37_79B9, 0xC13F_A9A9, 0x91E1_0DA5, 0xD1B5_4A33];
    let mut credits = vec![0i128; k];
    // Two sources are one pair, which may trade all there is; in a ring each source trades twice, half of it each time.
    let (pairs, share) = if k == 2 { (1, 1) } else { (k, 2) };
    let most = total / (2 * k as i128 - 2);
    for slot in 0..pairs {
        let next = (slot + 1) % k;
        let phase = lane
            .wrapping_add(1)
            .wrapping_mul(STEPS[slot % STEPS.len()])
            .wrapping_add((slot as u32).wrapping_mul(0x5851_F42D));
        let traded = most * (2 * (phase >> 16) as i128 - (1 << 16)) / share;
        credits[slot] += traded;
        credits[next] -= traded;
    }
    credits
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(weights: &[u64], lane: u32, blocks: u64) -> Vec<usize> {
        let mut counts = StageCounts { from_block: 0, blocks: vec![0; weights.len()] };
        (0..blocks)
            .map(|_| {
                let source = next_source(weights, lane, &counts).expect("there are weights");
                counts.blocks[source] += 1;
                source
            })
            .collect()
    }

    proptest! {
        /// The promise of the header, for every prefix, with weights from even to a million to one.
        #[test]
        fn share_is_within_one_block(
            weights in prop::collection::vec(prop_oneof![Just(1u64), 1u64..10, 1u64..1_000_000, Just(1_000_000u64)], 1..9),
            lane in 0u32..64,
        ) {
            let total: u128 = weights.iter().map(|&w| w as u128).sum();
            let mut given = vec![0u128; weights.len()];
            for (n, source) in run(&weights, lane, 700).into_iter().enumerate() {
                given[source] += 1;
                for (i, &w) in weights.iter().enumerate() {
                    let ideal = w as u128 * (n as u128 + 1);
                    prop_assert!(ideal.abs_diff(given[i] * total) <= total, "source {i} after {n}: {given:?} of {weights:?}");
                }
            }
        }
    }

    /// Why lanes have credits and rotations: at every block number the lanes together hold every source.
    #[test]
    fn lanes_mix_at_every_step() {
        for weights in [vec![1u64, 1], vec![7, 3], vec![1; 8]] {
            let lanes: Vec<Vec<usize>> = (0..32).map(|lane| run(&weights, lane, 200)).collect();
            for n in 0..200 {
                for source in 0..weights.len() {
                    let share = lanes.iter().filter(|l| l[n] == source).count();
                    assert!(
                        share > 0 && share < 32,
                        "block {n} of {weights:?}: source {source} on {share} of 32 lanes"
                    );
                }
            }
        }
    }

    /// Which source comes first among those that are owed alike is part of the stream, so it is written down.
    #[test]
    fn ties_are_pinned() {
        let check = |weights: &[u64], lane: u32, expected: &str| {
            let found: String = run(weights, lane, 24).iter().map(|&source| (b'A' + source as u8) as char).collect();
            assert_eq!(found, expected, "{weights:?}, lane {lane}");
        };
        check(&[3, 1], 0, "AABAAABAAABAAABAAABAAABA");
        check(&[3, 1], 1, "BAAABAAABAAABAAABAAABAAA");
        check(&[1, 1, 1], 0, "ABCABCABCABCABCABCABCABC");
        check(&[1, 1, 1], 1, "BCABCABCABCABCABCABCABCA");
        check(&[5, 3, 2], 0, "ABACABACABABACABACABABAC");
        check(&[5, 3, 2], 7, "ABCAABACBAABCAABACBAABCA");
        check(&[1, 1, 1, 1], 2, "CDABCDABCDABCDABCDABCDAB");
    }

    /// A source without weight gives nothing; none at all is no source.
    #[test]
    fn off_means_off() {
        assert!(run(&[1, 0, 2], 3, 90).iter().all(|&s| s != 1));
        assert_eq!(next_source(&[0, 0], 0, &StageCounts { from_block: 0, blocks: vec![0, 0] }), None);
    }
}
