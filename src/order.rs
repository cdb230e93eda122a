//! Orders that are computed, never stored: keyed permutations of shards, units and documents.
//!
//! Comes in: the seed and the numbers that name a place (source, epoch, shard, window). Goes out: which element
//! stands at which position. Holds: a pure function of its arguments, integers only, the same on every machine.
//! Does not know: what is permuted.
//!
//! Sources: M. Luby, C. Rackoff, "How to construct pseudorandom permutations from pseudorandom functions" (1988), for
//! the Feistel network; J. Black, P. Rogaway, "Ciphers with arbitrary finite domains" (2002), for cycle walking;
//! R. Durstenfeld, "Algorithm 235" (1964), for the shuffle of a window; G. Steele et al., "Fast splittable
//! pseudorandom number generators" (2014), for the mixing function.

/// A 64-bit key for one purpose, from the run's seed.
///
/// `purpose` separates uses that would else share numbers; `name` is the source's name, so that adding a source
/// changes no other source's order. Cost: one BLAKE3 block.
pub fn key(seed: u64, purpose: &str, name: &str, numbers: &[u64]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    for text in [purpose, name] {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    for number in numbers {
        hasher.update(&number.to_le_bytes());
    }
    let bytes = hasher.finalize();
    u64::from_le_bytes(bytes.as_bytes()[..8].try_into().expect("a BLAKE3 hash has 32 bytes"))
}

/// SplitMix64's output function: every input bit changes half of the output bits.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// A permutation of `0..len`, computed an element at a time: a Feistel network on the next even power of two,
/// walked until it lands inside.
#[derive(Debug, Clone, Copy)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    key: Option<u64>,
}

impl Permutation {
    /// The permutation of `0..len` that `key` names.
    pub fn keyed(len: u64, key: u64) -> Self {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        Permutation { len, half_bits: bits.div_ceil(2).max(1), key: Some(key) }
    }

    /// The order as it is: shuffling off.
    pub fn identity(len: u64) -> Self {
        Permutation { len, half_bits: 1, key: None }
    }

    /// The element at `position`. Cost: fewer than four walks of eight rounds on average.
    ///
    /// # Panics
    /// When `position` is not below the length: our own bug.
    pub fn at(&self, position: u64) -> u64 {
        assert!(position < self.len, "position {position} of a permutation of {}", self.len);
        let Some(key) = self.key else { return position };
        let mask = (1u64 << self.half_bits) - 1;
        let mut x = position;
        loop {
            let (mut left, mut right) = (x >> self.half_bits, x & mask);
            for round in 0..8u64 {
                let f = mix(right ^ key.wrapping_add((round + 1).wrapping_mul(GOLDEN))) >> (64 - self.half_bits);
                (left, right) = (right, left ^ f);
            }
            x = (left << self.half_bits) | right;
            if x < self.len {
                return x;
            }
        }
    }
}

/// Shuffles `items` in place by `key`. For what is in memory anyway, such as one window's documents.
pub fn shuffle<T>(items: &mut [T], key: u64) {
    let mut state = key;
    for i in (1..items.len()).rev() {
        state = state.wrapping_add(GOLDEN);
        let j = ((mix(state) as u128 * (i as u128 + 1)) >> 64) as usize;
        items.swap(i, j);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length from 1 to 300 and some larger ones: each element exactly once.
    #[test]
    fn permutation_is_a_bijection() {
        for len in (1..300).chain([1000, 4095, 4096, 4097, 100_000]) {
            let permutation = Permutation::keyed(len, key(7, "test", "a", &[len]));
            let mut seen = vec![false; len as usize];
            for position in 0..len {
                let element = permutation.at(position) as usize;
                assert!(!std::mem::replace(&mut seen[element], true), "{element} twice in {len}");
            }
        }
    }

    /// Over many keys each element comes first about equally often, also in the small domains where a weak
    /// network would show.
    #[test]
    fn small_permutations_are_not_lopsided() {
        for len in [2u64, 3, 5, 7, 12] {
            let mut first = vec![0u32; len as usize];
            let trials = 3000;
            for k in 0..trials {
                first[Permutation::keyed(len, key(1, "test", "", &[k])).at(0) as usize] += 1;
            }
            let even = trials as f64 / len as f64;
            for count in first {
                assert!((count as f64) > even * 0.8 && (count as f64) < even * 1.2, "{count} of {trials}, {len}");
            }
        }
    }

    /// The values are part of the format: a run resumed by a later version has to see the same order.
    #[test]
    fn values_are_pinned() {
        assert_eq!(key(42, "shards", "web", &[0]), PINNED_KEY);
        let permutation = Permutation::keyed(10, 12345);
        assert_eq!((0..10).map(|i| permutation.at(i)).collect::<Vec<_>>(), PINNED_PERMUTATION);
        let mut items: Vec<u32> = (0..10).collect();
        shuffle(&mut items, 99);
        assert_eq!(items, PINNED_SHUFFLE);
    }

    const PINNED_KEY: u64 = 1_349_766_975_130_239_295;
    const PINNED_PERMUTATION: [u64; 10] = [8, 3, 7, 0, 6, 2, 1, 9, 4, 5];
    const PINNED_SHUFFLE: [u32; 10] = [7, 4, 3, 9, 5, 1, 8, 6, 0, 2];
}
