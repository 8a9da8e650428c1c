//! The bounds of the segments of a path.
//!
//! A path's segments lie between its slashes. For a path of up to 63 bytes, the slashes are the
//! bits of one register; up to 127 bytes, of two. A longer path is searched during the walk. Bit
//! `n` stands for a slash at byte `n`, and one more bit after the last byte ends the last segment.

use crate::hash::{read_short, read_u64};

/// A segment of the path, and the state for moving to the next one.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<R> {
    /// The first byte of the segment; one beyond [`Slashes::limit`] if no segment is left.
    pub(crate) start: usize,
    /// The byte after the segment.
    pub(crate) end: usize,
    /// The slashes from `end` on.
    remaining: R,
}

/// The slashes of one path that begins with a slash.
pub(crate) trait Slashes {
    /// The representation of the remaining slashes.
    type Remaining: Copy;
    /// Whether fixed text must be compared in its plain form (see `encoding.rs`).
    const ENCODED: bool;

    /// The end of the last segment.
    fn limit(&self) -> usize;
    /// The segment with this number, which must exist.
    fn seek(&self, segment: usize) -> Cursor<Self::Remaining>;
    /// The segment after this one, or a cursor beyond the limit.
    fn advance(&self, cursor: Cursor<Self::Remaining>) -> Cursor<Self::Remaining>;

    /// A text in which the segments have the same positions as in the path. Unless
    /// [`Slashes::ENCODED`] is set, it has at least eight bytes.
    fn text(&self) -> &[u8];
}

/// The slashes of a path of up to 63 bytes.
#[derive(Clone, Copy)]
pub(crate) struct Slashes64<'p> {
    /// The bits, including that of the end.
    pub(crate) bits: u64,
    /// The length of the path in bytes.
    pub(crate) limit: usize,
    /// The path, followed by zeros if it is shorter than eight bytes.
    pub(crate) text: &'p [u8],
}

impl Slashes64<'_> {
    /// Returns whether no segment is left at the cursor.
    #[inline(always)]
    pub(crate) fn is_over(&self, cursor: Cursor<u64>) -> bool {
        cursor.remaining == 0
    }
}

impl Slashes for Slashes64<'_> {
    type Remaining = u64;
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
        let remaining = bits & bits.wrapping_sub(1);
        Cursor { start, end: remaining.trailing_zeros() as usize, remaining }
    }

    #[inline(always)]
    fn advance(&self, cursor: Cursor<u64>) -> Cursor<u64> {
        let remaining = cursor.remaining & cursor.remaining.wrapping_sub(1);
        Cursor { start: cursor.end + 1, end: remaining.trailing_zeros() as usize, remaining }
    }

    #[inline(always)]
    fn text(&self) -> &[u8] {
        self.text
    }
}

/// The slashes of a path of up to 127 bytes.
#[derive(Clone, Copy)]
pub(crate) struct Slashes128<'p> {
    /// The bits, including that of the end.
    pub(crate) bits: u128,
    /// The path.
    pub(crate) text: &'p [u8],
}

impl Slashes for Slashes128<'_> {
    type Remaining = u128;
    const ENCODED: bool = false;

    fn limit(&self) -> usize {
        self.text.len()
    }

    fn seek(&self, segment: usize) -> Cursor<u128> {
        let mut bits = self.bits;
        for _ in 0..segment {
            bits &= bits.wrapping_sub(1);
        }
        let start = bits.trailing_zeros() as usize + 1;
        let remaining = bits & bits.wrapping_sub(1);
        Cursor { start, end: remaining.trailing_zeros() as usize, remaining }
    }

    #[inline(always)]
    fn advance(&self, cursor: Cursor<u128>) -> Cursor<u128> {
        let remaining = cursor.remaining & cursor.remaining.wrapping_sub(1);
        Cursor { start: cursor.end + 1, end: remaining.trailing_zeros() as usize, remaining }
    }

    #[inline(always)]
    fn text(&self) -> &[u8] {
        self.text
    }
}

/// The slashes of any path, found by searching. Slow; used for long paths, for paths with escapes,
/// and to look up the path with the other form of its trailing slash.
#[derive(Clone, Copy)]
pub(crate) struct SlowSlashes<'p> {
    /// The path.
    pub(crate) path: &'p [u8],
    /// Whether to treat the path as if it had another slash, and so an empty segment, at the end.
    pub(crate) slash_added: bool,
}

impl SlowSlashes<'_> {
    fn cursor_at(&self, start: usize) -> Cursor<()> {
        let rest = self.path.get(start..).unwrap_or_default();
        let length = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        Cursor { start, end: start + length, remaining: () }
    }
}

impl Slashes for SlowSlashes<'_> {
    type Remaining = ();
    const ENCODED: bool = true;

    fn limit(&self) -> usize {
        self.path.len() + usize::from(self.slash_added)
    }

    fn seek(&self, segment: usize) -> Cursor<()> {
        let mut cursor = self.cursor_at(1);
        for _ in 0..segment {
            cursor = self.advance(cursor);
        }
        cursor
    }

    fn advance(&self, cursor: Cursor<()>) -> Cursor<()> {
        self.cursor_at(cursor.end + 1)
    }

    fn text(&self) -> &[u8] {
        self.path
    }
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = ONES << 7;

/// Sets bit `n` of the result if byte `n` of `word` is a slash.
#[inline(always)]
fn slash_bits(word: u64) -> u64 {
    let diff = word ^ (ONES * b'/' as u64);
    // The high bit of each byte that is zero; exact, because no byte borrows from the next.
    let zeros = !(((diff | HIGHS) - ONES) | diff) & HIGHS;
    // The multiplication gathers the eight bits into the top byte.
    zeros.wrapping_mul(0x0002_0408_1020_4081) >> 56
}

/// Sets the high bit of some byte of the result if `word` contains a `%`. Neither the position of
/// that byte nor the other bits have a meaning.
#[inline(always)]
fn escape_bits(word: u64) -> u64 {
    let diff = word ^ (ONES * b'%' as u64);
    diff.wrapping_sub(ONES) & !diff
}

/// The slashes of up to 64 bytes, a multiple of eight.
#[inline(always)]
fn slash_bits_of<const LENGTH: usize>(text: &[u8; LENGTH]) -> u64 {
    let mut bits = 0;
    let mut at = 0;
    while at < LENGTH {
        bits |= slash_bits(read_u64(text, at)) << at;
        at += 8;
    }
    bits
}

/// The slashes of the first and of the last `PART` bytes of a path, and whether they contain an
/// escape. The two parts may overlap, so they cover any path of `PART` to `2 * PART` bytes without
/// a branch.
#[inline(always)]
fn scan<const PART: usize>(path: &[u8]) -> (u64, u64, bool) {
    let parts = (path.first_chunk::<PART>(), path.last_chunk::<PART>());
    let (Some(front), Some(back)) = parts else {
        unreachable!("the path is not shorter than a part")
    };
    let mut has_escape = false;
    if PART == 8 {
        let high_bits = escape_bits(read_u64(front, 0)) | escape_bits(read_u64(back, 0));
        has_escape = high_bits & HIGHS != 0;
    } else {
        // No early exit, so that the compiler compares many bytes at once.
        for at in 0..PART {
            has_escape |= (front[at] == b'%') | (back[at] == b'%');
        }
    }
    (slash_bits_of(front), slash_bits_of(back), has_escape)
}

/// Returns the bits for the slashes and the end of a path of up to 63 bytes, and whether the path
/// contains an escape.
#[inline(always)]
pub(crate) fn scan_short(path: &[u8]) -> (u64, bool) {
    let length = path.len();
    debug_assert!(length < 64);
    let (front, back, part, has_escape) = if length < 8 {
        let word = read_short(path);
        (slash_bits(word), 0, 0, escape_bits(word) & HIGHS != 0)
    } else if length <= 16 {
        let (front, back, has_escape) = scan::<8>(path);
        (front, back, 8, has_escape)
    } else if length <= 32 {
        let (front, back, has_escape) = scan::<16>(path);
        (front, back, 16, has_escape)
    } else {
        let (front, back, has_escape) = scan::<32>(path);
        (front, back, 32, has_escape)
    };
    (front | back << (length - part) | 1 << length, has_escape)
}

/// Like [`scan_short`], for a path of 64 to 127 bytes.
pub(crate) fn scan_medium(path: &[u8]) -> (u128, bool) {
    let length = path.len();
    debug_assert!((64..128).contains(&length));
    let (front, back, has_escape) = scan::<64>(path);
    (u128::from(front) | u128::from(back) << (length - 64) | 1 << length, has_escape)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments<S: Slashes>(slashes: S) -> Vec<(usize, usize)> {
        let mut bounds = Vec::new();
        let mut cursor = slashes.seek(0);
        while cursor.start <= slashes.limit() {
            let direct = slashes.seek(bounds.len());
            assert_eq!((direct.start, direct.end), (cursor.start, cursor.end));
            bounds.push((cursor.start, cursor.end));
            cursor = slashes.advance(cursor);
        }
        bounds
    }

    #[test]
    fn scanning_and_searching_find_the_same_segments_at_every_length() {
        for step in 1..12 {
            for length in 1..128 {
                let path: Vec<u8> =
                    (0..length).map(|at| if at % step == 0 { b'/' } else { b'.' }).collect();
                let expected = segments(SlowSlashes { path: &path, slash_added: false });
                let actual = if length < 64 {
                    let (bits, has_escape) = scan_short(&path);
                    assert!(!has_escape);
                    segments(Slashes64 { bits, limit: length, text: &path })
                } else {
                    let (bits, has_escape) = scan_medium(&path);
                    assert!(!has_escape);
                    segments(Slashes128 { bits, text: &path })
                };
                assert_eq!(actual, expected, "{length} by {step}");
            }
        }
    }

    #[test]
    fn scanning_finds_an_escape_at_every_position() {
        for length in 1..128 {
            for at in 0..length {
                let mut path = vec![b'/'; length];
                path[at] = b'%';
                let seen = if length < 64 { scan_short(&path).1 } else { scan_medium(&path).1 };
                assert!(seen, "{at} of {length}");
            }
        }
    }

    #[test]
    fn slash_added_appends_one_empty_segment() {
        let path = b"/a/b";
        assert_eq!(segments(SlowSlashes { path, slash_added: true }), [(1, 2), (3, 4), (5, 5)]);
    }
}
