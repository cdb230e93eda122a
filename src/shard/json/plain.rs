//! Where the plain part of a JSON string ends: at a quote, a backslash, a control character.
//!
//! Comes in: bytes. Goes out: how many of them are plain. Holds: many are looked at together, and the count is that of one look at a byte
//! after the other. Does not know: escapes, UTF-8.

/// A byte in each of eight places.
const fn each(byte: u8) -> u64 {
    0x0101_0101_0101_0101 * byte as u64
}

/// The top bit of each place of `word` that holds `byte`; exact up to the first such place.
fn places_of(word: u64, byte: u8) -> u64 {
    let zero = word ^ each(byte);
    zero.wrapping_sub(each(1)) & !zero & each(0x80)
}

/// Eight bytes from `at` on; the first is the lowest.
fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// How many bytes of `word` come before the first quote, backslash or control character; 8 if there is none.
fn plain_count(word: u64) -> usize {
    let control = word.wrapping_sub(each(0x20)) & !word & each(0x80);
    (places_of(word, b'"') | places_of(word, b'\\') | control).trailing_zeros() as usize / 8
}

/// Bytes looked at together.
pub(super) const BLOCK: usize = 32;

/// How many bytes of `block` come before the first quote, backslash or control character; all if there is none.
#[cfg(target_arch = "x86_64")]
pub(super) fn plain_block_count(block: &[u8; BLOCK]) -> usize {
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8,
    };
    let half = |at: usize| {
        // SAFETY: SSE2 is part of every x86-64; the load reads 16 of the block's 32 bytes, at 0 or at 16, and may be
        // unaligned.
        unsafe {
            let bytes = _mm_loadu_si128(block.as_ptr().add(at).cast::<__m128i>());
            let quote = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'"' as i8));
            let backslash = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'\\' as i8));
            let control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1f)), bytes);
            _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quote, backslash), control)) as u32
        }
    };
    ((half(16) << 16) | half(0)).trailing_zeros() as usize
}

/// How many bytes of `block` come before the first quote, backslash or control character; all if there is none.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn plain_block_count(block: &[u8; BLOCK]) -> usize {
    let mut count = 0;
    for word in block.chunks_exact(8) {
        let plain = plain_count(u64::from_le_bytes(word.try_into().expect("eight bytes")));
        count += plain;
        if plain < 8 {
            break;
        }
    }
    count
}

/// Where the plain part of a string that starts at `at` ends: at a quote, a backslash, a control character, or the end.
///
/// Many bytes at once and inline. Why not `memchr`: text has an escape every 40 bytes or so, where the call takes longer than
/// the search.
pub(super) fn plain_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(block) = bytes[at..].first_chunk() {
        let count = plain_block_count(block);
        at += count;
        if count < BLOCK {
            return at;
        }
    }
    while let Some(word) = word_at(bytes, at) {
        let count = plain_count(word);
        at += count;
        if count < 8 {
            return at;
        }
    }
    while at < bytes.len() && !matches!(bytes[at], b'"' | b'\\' | 0..0x20) {
        at += 1;
    }
    at
}
