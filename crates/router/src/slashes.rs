//! Where the segments of a path begin and end.
//!
//! A path's segments lie between its slashes. Up to 63 bytes the slashes are the bits of one
//! register, up to 127 of two; a longer path is searched as the walk goes. Bit `n` stands for a
//! slash at byte `n`, and one more bit behind the last byte ends the last segment.

use crate::word::{leading_word, leading_word_beside, short_word, word};

/// A segment of the path, and what is needed to go on to the next.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<R> {
    /// The first byte of the segment; one beyond [`Slashes::limit`] when no segment is left.
    pub(crate) start: usize,
    /// The byte behind the segment.
    pub(crate) end: usize,
    /// The slashes from `end` on.
    rest: R,
}

/// The slashes of one path that begins with a slash.
pub(crate) trait Slashes {
    /// How the slashes to come are kept.
    type Rest: Copy;
    /// Whether fixed text must be compared in its plain form (see `encoding.rs`).
    const ENCODED: bool;

    /// Where the last segment ends.
    fn limit(&self) -> usize;
    /// The segment with this number, which exists.
    fn seek(&self, segment: usize) -> Cursor<Self::Rest>;
    /// The segment after this one, or a place beyond the limit.
    fn advance(&self, cursor: Cursor<Self::Rest>) -> Cursor<Self::Rest>;

    /// The first eight bytes of a piece of the path, padded with zeros if it is shorter.
    #[inline(always)]
    fn leading_word(&self, path: &[u8], start: usize, end: usize) -> u64 {
        leading_word(path, start, end)
    }
}

/// The slashes of a path of up to 63 bytes.
#[derive(Clone, Copy)]
pub(crate) struct Slashes64 {
    /// The bits, that of the end included.
    pub(crate) bits: u64,
    /// The length of the path in bytes.
    pub(crate) limit: usize,
    /// The last eight bytes of the path, if pieces of it are to be read.
    pub(crate) tail: u64,
}

impl Slashes for Slashes64 {
    type Rest = u64;
    const ENCODED: bool = false;

    #[inline(always)]
    fn limit(&self) -> usize {
        self.limit
    }

    #[inline(always)]
    fn seek(&self, segment: usize) -> Cursor<u64> {
        let mut bits = self.bits;
        for _ in 0..segment {
            bits &= bits.wrapping_sub(1);
        }
        let start = bits.trailing_zeros() as usize + 1;
        let rest = bits & bits.wrapping_sub(1);
        Cursor { start, end: rest.trailing_zeros() as usize, rest }
    }

    #[inline(always)]
    fn advance(&self, cursor: Cursor<u64>) -> Cursor<u64> {
        let rest = cursor.rest & cursor.rest.wrapping_sub(1);
        Cursor { start: cursor.end + 1, end: rest.trailing_zeros() as usize, rest }
    }

    #[inline(always)]
    fn leading_word(&self, path: &[u8], start: usize, end: usize) -> u64 {
        leading_word_beside(&path[..self.limit], self.tail, start, end)
    }
}

/// The slashes of a path of up to 127 bytes.
#[derive(Clone, Copy)]
pub(crate) struct Slashes128 {
    /// The bits, that of the end included.
    pub(crate) bits: u128,
    /// The length of the path in bytes.
    pub(crate) limit: usize,
}

impl Slashes for Slashes128 {
    type Rest = u128;
    const ENCODED: bool = false;

    fn limit(&self) -> usize {
        self.limit
    }

    fn seek(&self, segment: usize) -> Cursor<u128> {
        let mut bits = self.bits;
        for _ in 0..segment {
            bits &= bits.wrapping_sub(1);
        }
        let start = bits.trailing_zeros() as usize + 1;
        let rest = bits & bits.wrapping_sub(1);
        Cursor { start, end: rest.trailing_zeros() as usize, rest }
    }

    #[inline(always)]
    fn advance(&self, cursor: Cursor<u128>) -> Cursor<u128> {
        let rest = cursor.rest & cursor.rest.wrapping_sub(1);
        Cursor { start: cursor.end + 1, end: rest.trailing_zeros() as usize, rest }
    }
}

/// The slashes of any path, searched for. The slow way: long paths, paths with escapes, and the
/// search for the other slash form.
#[derive(Clone, Copy)]
pub(crate) struct Searched<'p> {
    /// The path.
    pub(crate) path: &'p [u8],
    /// Whether one more slash is imagined behind the path, and so one more, empty segment.
    pub(crate) slash_added: bool,
}

impl Searched<'_> {
    fn at(&self, start: usize) -> Cursor<()> {
        let left = self.path.get(start..).unwrap_or_default();
        let length = left.iter().position(|byte| *byte == b'/').unwrap_or(left.len());
        Cursor { start, end: start + length, rest: () }
    }
}

impl Slashes for Searched<'_> {
    type Rest = ();
    const ENCODED: bool = true;

    fn limit(&self) -> usize {
        self.path.len() + usize::from(self.slash_added)
    }

    fn seek(&self, segment: usize) -> Cursor<()> {
        let mut cursor = self.at(1);
        for _ in 0..segment {
            cursor = self.advance(cursor);
        }
        cursor
    }

    fn advance(&self, cursor: Cursor<()>) -> Cursor<()> {
        self.at(cursor.end + 1)
    }
}

/// What one look at a path of up to 127 bytes finds.
pub(crate) struct Scan {
    /// The slashes, and the end.
    pub(crate) bits: u128,
    /// Whether there is a `%`.
    pub(crate) escapes: bool,
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = ONES << 7;

/// Bit `n` of the result says that byte `n` of `word` is a slash.
#[inline(always)]
fn slashes_of_word(word: u64) -> u64 {
    let differing = word ^ (ONES * b'/' as u64);
    // The high bit of each byte that is zero; exact, because no byte borrows from the next.
    let zeros = !(((differing | HIGHS) - ONES) | differing) & HIGHS;
    // The multiplication gathers the eight bits into the top byte.
    zeros.wrapping_mul(0x0002_0408_1020_4081) >> 56
}

/// A high bit of the result is set if a byte of `word` is a `%`; the other bits mean nothing, nor
/// does it matter which of the high bits it is.
#[inline(always)]
fn escapes_of_word(word: u64) -> u64 {
    let differing = word ^ (ONES * b'%' as u64);
    differing.wrapping_sub(ONES) & !differing
}

/// The slashes of up to 64 bytes, and a number that is not zero if there is an escape.
#[inline(always)]
fn scan_words(text: &[u8]) -> (u64, u64) {
    let length = text.len();
    if length < 8 {
        let word = short_word(text);
        return (slashes_of_word(word), escapes_of_word(word) & HIGHS);
    }
    let (mut bits, mut escapes, mut at) = (0, 0, 0);
    while at + 8 < length {
        let word = word(text, at);
        bits |= slashes_of_word(word) << at;
        escapes |= escapes_of_word(word);
        at += 8;
    }
    // The last word overlaps the one before; it finds the same slashes again.
    let last = word(text, length - 8);
    let escapes = (escapes | escapes_of_word(last)) & HIGHS;
    (bits | slashes_of_word(last) << (length - 8), escapes)
}

/// Looks at a path of up to 63 bytes: its slashes and end, and whether there is an escape.
#[inline(always)]
pub(crate) fn scan_short(path: &[u8]) -> (u64, bool) {
    debug_assert!(path.len() < 64);
    let (bits, escapes) = scan_words(path);
    (bits | 1 << path.len(), escapes != 0)
}

/// Looks at a path of 64 to 127 bytes.
pub(crate) fn scan_medium(path: &[u8]) -> Scan {
    debug_assert!((64..128).contains(&path.len()));
    let (front, back) = path.split_at(64);
    let (low, escapes_low) = scan_words(front);
    let (high, escapes_high) = scan_words(back);
    let high = high | 1 << back.len();
    Scan {
        bits: u128::from(low) | u128::from(high) << 64,
        escapes: escapes_low | escapes_high != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments<S: Slashes>(slashes: S) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        let mut cursor = slashes.seek(0);
        while cursor.start <= slashes.limit() {
            let sought = slashes.seek(found.len());
            assert_eq!((sought.start, sought.end), (cursor.start, cursor.end));
            found.push((cursor.start, cursor.end));
            cursor = slashes.advance(cursor);
        }
        found
    }

    #[test]
    fn registers_and_searching_find_the_same_segments_at_every_length() {
        for step in 1..12 {
            for length in 1..128 {
                let path: Vec<u8> =
                    (0..length).map(|at| if at % step == 0 { b'/' } else { b'.' }).collect();
                let expected = segments(Searched { path: &path, slash_added: false });
                let found = if length < 64 {
                    let (bits, escapes) = scan_short(&path);
                    assert!(!escapes);
                    segments(Slashes64 { bits, limit: length, tail: 0 })
                } else {
                    let scan = scan_medium(&path);
                    assert!(!scan.escapes);
                    segments(Slashes128 { bits: scan.bits, limit: length })
                };
                assert_eq!(found, expected, "{length} by {step}");
            }
        }
    }

    #[test]
    fn an_escape_is_seen_wherever_it_stands() {
        for length in 1..128 {
            for at in 0..length {
                let mut path = vec![b'/'; length];
                path[at] = b'%';
                let seen =
                    if length < 64 { scan_short(&path).1 } else { scan_medium(&path).escapes };
                assert!(seen, "{at} of {length}");
            }
        }
    }

    #[test]
    fn an_imagined_slash_adds_one_empty_segment() {
        let path = b"/a/b";
        assert_eq!(segments(Searched { path, slash_added: true }), [(1, 2), (3, 4), (5, 5)]);
    }
}
