//! Who reads what: shards to groups of lanes, units and windows to the lanes of a group.
//!
//! Comes in: numbers (shards, sizes, lanes, seed). Goes out: for a lane and an epoch, the shards of its walk and its
//! share of each. Holds: over all lanes, each unit of each shard comes exactly once an epoch; a pure function.
//! Does not know: what is in a shard, who asks.
//!
//! ```text
//! 6 lanes, 9 shards -> 2 groups (9 / 2 >= 4) of 3 lanes: lane l is member l / 2 of group l mod 2
//! epoch's permutation of shards   7 2 0 5 8 1 3 6 4
//! group 0 walks                   7   0   8   3   4
//! group 1 walks                     2   5   1   6
//! shard 7, first of the walk, units permuted  c a d b e   -> members 0 1 2 0 1
//! shard 0, second of the walk                 b a         -> members 1 2: the next shard starts a member further
//! ```
//!
//! Where shards or parts don't come out even, some groups or members have one more in an epoch. Each epoch begins with another group
//! and another member, so that all have as many in the long run: else the same lanes would be slower through the epochs for ever,
//! and what a shared decoder keeps for them would grow with each.
//!
//! A shard is cut finer than `shuffle.span` and `shuffle.window` say where it would else give a lane of its group fewer
//! than about four parts: with one compressed file and 32 lanes, windows of 2 MiB would leave some lanes twice the work
//! of others, so lanes would drift through the epochs at different paces.

use super::ShuffleOptions;
use crate::order::{Permutation, key};

/// Smallest span and window that a small shard is cut into.
const PART_MIN: u64 = 128;

/// Parts of a shard that each lane of its group should get at least.
const PARTS_A_LANE: u64 = 4;

/// The first number from `from` on that has no divisor in common with `count`.
fn coprime_from(from: u64, count: u64) -> u64 {
    let is_coprime = |number: &u64| {
        let (mut a, mut b) = (*number, count);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a == 1
    };
    (from..).find(is_coprime).expect("one beyond a multiple is coprime")
}

/// Where one that has place `place` of `count` is after so many turns of the circle. A turn is about the golden section of it: `count` turns
/// begin with each once, and those of a few turns lie apart.
fn turned(place: u32, turns: u64, count: u64) -> u64 {
    let turn = coprime_from((count * 618).div_ceil(1000), count) % count;
    (u64::from(place) + turns % count * turn) % count
}

/// The rule by which one source's shards are dealt to lanes.
#[derive(Debug, Clone)]
pub struct Dealing {
    seed: u64,
    source: String,
    lanes: u32,
    groups: u32,
    shards: u64,
    shuffle: ShuffleOptions,
}

/// One lane's share of one shard on its walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Epoch of the walk.
    pub epoch: u32,
    /// Index of the shard in the walk.
    pub walk: u64,
    /// Index of the shard in the manifest.
    pub shard: u64,
    /// The lane's number in its group, counted from the one that has the shard's first part.
    member: u64,
    /// Lanes in the group.
    members: u64,
}

impl Share {
    /// Whether window `window` of a shard that is read in order is the lane's.
    pub fn has_window(&self, window: u64) -> bool {
        window % self.members == self.member
    }
}

impl Dealing {
    /// The dealing of a source of `shards` shards over `lanes` lanes.
    pub fn new(seed: u64, source: &str, lanes: u32, shards: u64, shuffle: &ShuffleOptions) -> Self {
        let groups = (1..=lanes)
            .rev()
            .find(|groups| lanes.is_multiple_of(*groups) && u64::from(*groups) * 4 <= shards)
            .unwrap_or(1);
        Dealing { seed, source: source.to_owned(), lanes, groups, shards, shuffle: shuffle.clone() }
    }

    /// Number of groups the lanes form.
    pub fn groups(&self) -> u32 {
        self.groups
    }

    /// Lanes in a group.
    pub fn members(&self) -> u32 {
        self.lanes / self.groups
    }

    /// The group of a lane.
    pub fn group(&self, lane: u32) -> u32 {
        lane % self.groups
    }

    /// `(span, window)` in bytes for a shard of `size` stored bytes.
    pub fn parts(&self, size: u64) -> (u64, u64) {
        let fine = match u64::from(self.members()) {
            1 => u64::MAX,
            members => (size / (PARTS_A_LANE * members)).max(PART_MIN),
        };
        let span = self.shuffle.span.0.min(fine).max(1);
        (span, self.shuffle.window.0.min(span).max(1))
    }

    /// Units that a shard should have, or be read in order instead, so that no lane of its group goes without.
    pub fn units_min(&self) -> u64 {
        match self.members() {
            1 => 0,
            members => 2 * u64::from(members),
        }
    }

    /// The share of `lane` in the shard at index `walk` of its group's walk; `None` past the epoch's end.
    pub fn share(&self, lane: u32, epoch: u32, walk: u64) -> Option<Share> {
        let (epochs, groups, members) = (u64::from(epoch), u64::from(self.groups), u64::from(self.members()));
        let position = walk.checked_mul(groups)?.checked_add(turned(self.group(lane), epochs, groups))?;
        if position >= self.shards {
            return None;
        }
        let shard = self.permutation(self.shards, "shards", &[epochs]).at(position);
        // Some turns more when all groups have had theirs, or the same members would be first whenever their group has a shard more.
        let more = coprime_from(groups, members) - groups;
        let member = turned(lane / self.groups, epochs + epochs / groups * more, members);
        // The next shard starts a member further.
        let member = (member + members - walk % members) % members;
        Some(Share { epoch, walk, shard, member, members })
    }

    /// The unit that is number `nth` of the lane's share of a shard cut into `units`; `None` past the share's end.
    pub fn unit(&self, share: &Share, units: u64, nth: u64) -> Option<u64> {
        let position = nth.checked_mul(share.members)?.checked_add(share.member)?;
        if position >= units {
            return None;
        }
        Some(self.permutation(units, "units", &[u64::from(share.epoch), share.shard]).at(position))
    }

    /// Puts the records of a window into delivery order.
    pub fn shuffle_window<T>(&self, share: &Share, unit: u64, window: u64, records: &mut [T]) {
        if self.shuffle.enabled {
            let numbers = [u64::from(share.epoch), share.shard, unit, window];
            crate::order::shuffle(records, key(self.seed, "window", &self.source, &numbers));
        }
    }

    fn permutation(&self, len: u64, purpose: &str, numbers: &[u64]) -> Permutation {
        if self.shuffle.enabled {
            Permutation::keyed(len, key(self.seed, purpose, &self.source, numbers))
        } else {
            Permutation::identity(len)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dealing(lanes: u32, shards: u64, enabled: bool) -> Dealing {
        Dealing::new(7, "web", lanes, shards, &ShuffleOptions { enabled, ..Default::default() })
    }

    /// Groups: the largest divisor of the lanes that leaves each about four shards.
    #[test]
    fn groups_follow_the_number_of_shards() {
        let check =
            |lanes, shards, groups| assert_eq!(dealing(lanes, shards, true).groups(), groups, "{lanes} {shards}");
        check(32, 1, 1);
        check(32, 7, 1);
        check(32, 8, 2);
        check(32, 127, 16);
        check(32, 128, 32);
        check(32, 1_000_000, 32);
        check(6, 9, 2);
        check(1, 100, 1);
    }

    /// Every shard in one group's walk, every unit and every window with one lane of that group, each epoch.
    #[test]
    fn every_part_is_dealt_exactly_once() {
        for (lanes, shards) in [(1, 1), (4, 1), (6, 9), (8, 33), (8, 3)] {
            for enabled in [false, true] {
                let dealing = dealing(lanes, shards, enabled);
                for epoch in 0..3 {
                    for units in [1u64, 2, 5, 40] {
                        let mut unit_seen = vec![0; (shards * units) as usize];
                        let mut window_seen = vec![0; (shards * units) as usize];
                        for lane in 0..lanes {
                            for walk in 0.. {
                                let Some(share) = dealing.share(lane, epoch, walk) else { break };
                                for nth in 0.. {
                                    let Some(unit) = dealing.unit(&share, units, nth) else { break };
                                    unit_seen[(share.shard * units + unit) as usize] += 1;
                                }
                                for window in 0..units {
                                    window_seen[(share.shard * units + window) as usize] +=
                                        u32::from(share.has_window(window));
                                }
                            }
                        }
                        assert!(unit_seen.iter().all(|&n| n == 1), "{lanes} lanes, {shards} shards: {unit_seen:?}");
                        assert!(window_seen.iter().all(|&n| n == 1), "{lanes} lanes, {shards} shards: {window_seen:?}");
                    }
                }
            }
        }
    }

    /// However uneven shards and parts are, no lane gets far ahead of another in any number of epochs.
    #[test]
    fn lanes_stay_together_over_epochs() {
        for (lanes, shards, parts, most) in
            [(32, 1, 165, 5), (32, 1, 130, 2), (6, 9, 5, 3), (32, 63, 7, 3), (12, 50, 13, 26), (64, 300, 9, 27)]
        {
            let dealing = dealing(lanes, shards, true);
            let mut got = vec![0u64; lanes as usize];
            for epoch in 0..200 {
                for (lane, got) in (0..lanes).zip(&mut got) {
                    let shares = (0..).map_while(|walk| dealing.share(lane, epoch, walk));
                    *got +=
                        shares.map(|s| (0..parts).filter(|&window| s.has_window(window)).count() as u64).sum::<u64>();
                }
                let (least, all) = (got.iter().min().unwrap(), got.iter().max().unwrap());
                assert!(all - least <= most, "{lanes} lanes, {shards} shards, epoch {epoch}: {got:?}");
            }
        }
    }

    /// Shards of one unit go to the lanes of the group in turn: none is starved.
    #[test]
    fn small_shards_reach_all_lanes() {
        let dealing = dealing(8, 31, true);
        let members = dealing.members() as u64;
        for lane in 0..8 {
            let got = (0..)
                .map_while(|walk| dealing.share(lane, 0, walk))
                .filter(|s| dealing.unit(s, 1, 0).is_some())
                .count();
            assert!(got as u64 >= 31 / u64::from(dealing.groups()) / members, "lane {lane} got {got}");
        }
    }
}
