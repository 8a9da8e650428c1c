//! The values of a path's parameters, found when they are asked for.

use crate::encoding::{raw_prefix, raw_suffix};
use crate::slashes::{Searched, Slashes, Slashes64, Slashes128};

/// What [`Router::find`](crate::Router::find) notes about a match, so that values can be found
/// later. It is small, owns nothing, and can be reused for the next lookup.
///
/// To read values, give it to [`Router::values`](crate::Router::values) with the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The place of the route in the router's list.
    pub(crate) route: u32,
    pub(crate) noted: Noted,
    /// The slashes of the path, if they were noted: the low and the high half.
    pub(crate) slashes: [u64; 2],
}

/// Which note of the slashes was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noted {
    /// There is no match.
    Nothing,
    /// The low half.
    Low,
    /// Both halves.
    Both,
    /// None: the path is long or has escapes, and is searched again.
    Search,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { route: u32::MAX, noted: Noted::Nothing, slashes: [0; 2] }
    }
}

/// Where a value lies in the path, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first byte.
    pub start: u32,
    /// The byte behind the last.
    pub end: u32,
}

/// Where a parameter is in its pattern.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) segment: u32,
    /// Whether it is a catch-all.
    pub(crate) rest: bool,
    pub(crate) prefix: Box<[u8]>,
    pub(crate) suffix: Box<[u8]>,
}

/// The parameters of a matched path: names, and raw values that are still percent-encoded (see
/// [`decode`](crate::decode)). Numbered from the left, from 0.
#[derive(Clone, Copy, Debug)]
pub struct Values<'r, 'p> {
    pub(crate) slots: &'r [Slot],
    pub(crate) names: &'r [Box<str>],
    pub(crate) parameters: Parameters,
    pub(crate) path: &'p [u8],
}

impl<'r, 'p> Values<'r, 'p> {
    /// How many parameters there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The raw value of the parameter with this number.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&'p [u8]> {
        let (start, end) = self.bounds(self.slots.get(index)?);
        self.path.get(start..end)
    }

    /// The raw value of the parameter with this name.
    #[inline]
    pub fn by_name(&self, name: &str) -> Option<&'p [u8]> {
        self.get(self.names.iter().position(|known| **known == *name)?)
    }

    /// Where the value of the parameter with this number lies in the path.
    #[inline]
    pub fn span(&self, index: usize) -> Option<Span> {
        let (start, end) = self.bounds(self.slots.get(index)?);
        Some(Span { start: start as u32, end: end as u32 })
    }

    /// Names and raw values, from the left.
    pub fn iter(&self) -> impl Iterator<Item = (&'r str, &'p [u8])> {
        let values = *self;
        (0..self.len()).filter_map(move |index| Some((&*values.names[index], values.get(index)?)))
    }

    #[inline]
    fn bounds(&self, slot: &Slot) -> (usize, usize) {
        let segment = slot.segment as usize;
        let limit = self.path.len();
        let [low, high] = self.parameters.slashes;
        let (start, end) = match self.parameters.noted {
            Noted::Nothing => return (0, 0),
            Noted::Low => {
                let cursor = Slashes64 { bits: low, limit, tail: 0 }.seek(segment);
                (cursor.start, cursor.end)
            }
            Noted::Both => {
                let bits = u128::from(low) | u128::from(high) << 64;
                let cursor = Slashes128 { bits, limit }.seek(segment);
                (cursor.start, cursor.end)
            }
            Noted::Search => return self.search(slot),
        };
        if slot.rest {
            return (start, limit);
        }
        (start + slot.prefix.len(), end - slot.suffix.len())
    }

    #[cold]
    fn search(&self, slot: &Slot) -> (usize, usize) {
        let cursor = Searched { path: self.path, slash_added: false }.seek(slot.segment as usize);
        if slot.rest {
            return (cursor.start, self.path.len());
        }
        let segment = self.path.get(cursor.start..cursor.end).unwrap_or_default();
        let prefix = raw_prefix(segment, &slot.prefix).unwrap_or(0);
        let suffix = raw_suffix(segment, &slot.suffix).unwrap_or(0);
        (cursor.start + prefix, cursor.end - suffix)
    }
}
