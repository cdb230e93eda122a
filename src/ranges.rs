//! Lists of ranges in rising order, none touching the next.

use std::ops::Range;

/// Adds a range that begins at or behind the last one's start: one that touches or overlaps it is joined with it.
pub(crate) fn join<T: Copy + Ord>(ranges: &mut Vec<Range<T>>, range: Range<T>) {
    match ranges.last_mut() {
        Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
        _ => ranges.push(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What touches or overlaps becomes one; what stands apart stays.
    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "a list of one range is meant")]
    fn touching_ranges_become_one() {
        let check = |given: &[Range<u64>], expected: &[Range<u64>]| {
            let mut joined = Vec::new();
            given.iter().for_each(|range| join(&mut joined, range.clone()));
            assert_eq!(joined, expected);
        };
        check(&[], &[]);
        check(&[0..2, 2..3, 5..9, 6..7, 6..10], &[0..3, 5..10]);
        check(&[1..2, 1..4], &[1..4]);
    }
}
