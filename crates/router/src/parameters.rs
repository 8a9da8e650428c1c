//! The values of a path's parameters, computed on demand.

use crate::PARAMETERS_MAX;
use crate::encoding::{raw_prefix, raw_suffix};
use crate::hash::{read_short, read_u64};
use crate::router::Route;
use crate::slashes::{Slashes, SlowSlashes};

/// Records a match of [`Router::find`](crate::Router::find), so that its values can be found later.
/// It is small, does not allocate, and can be reused for the next lookup.
///
/// To read values, pass it to [`Router::values`](crate::Router::values) with the same path.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// The index of the route in the router's list, or [`NO_NODE`](crate::node::NO_NODE).
    pub(crate) route: u32,
    pub(crate) recorded: RecordedBounds,
    /// The bounds of the values, if recorded. Old bounds are not cleared: `recorded` says how many
    /// are valid.
    bounds: [[u8; 2]; PARAMETERS_MAX],
}

/// Whether the bounds of the values were recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordedBounds {
    /// The bounds of this many values were recorded.
    Values(u8),
    /// None were recorded, because the path is long or has escapes. A value is found by searching
    /// the path again.
    Unrecorded,
}

impl Parameters {
    /// Clears the match.
    #[inline(always)]
    pub fn clear(&mut self) {
        (self.route, self.recorded) = (u32::MAX, RecordedBounds::Values(0));
    }

    /// Records the bounds of a value, which are below 256.
    #[inline(always)]
    pub(crate) fn record(&mut self, index: u8, start: usize, end: usize) {
        debug_assert!(start < end && end < 256);
        // The modulo only avoids a bounds check: a pattern has at most `PARAMETERS_MAX` parameters.
        self.bounds[index as usize % PARAMETERS_MAX] = [start as u8, end as u8];
    }

    fn recorded_bounds(&self) -> &[[u8; 2]] {
        match self.recorded {
            RecordedBounds::Values(count) => &self.bounds[..count as usize],
            RecordedBounds::Unrecorded => &[],
        }
    }
}

impl Default for Parameters {
    #[inline]
    fn default() -> Self {
        Self {
            route: u32::MAX,
            recorded: RecordedBounds::Values(0),
            bounds: [[0; 2]; PARAMETERS_MAX],
        }
    }
}

impl PartialEq for Parameters {
    fn eq(&self, other: &Self) -> bool {
        let same_route = (self.route, self.recorded) == (other.route, other.recorded);
        same_route && self.recorded_bounds() == other.recorded_bounds()
    }
}

impl Eq for Parameters {}

/// The position of a value in the path, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first byte.
    pub start: u32,
    /// The byte after the last.
    pub end: u32,
}

/// The position of a parameter in its pattern.
#[derive(Clone, Debug)]
pub(crate) struct ParameterPosition {
    pub(crate) segment: u32,
    /// Whether it is a catch-all.
    pub(crate) is_catch_all: bool,
    pub(crate) prefix: Box<[u8]>,
    pub(crate) suffix: Box<[u8]>,
}

/// The parameters of a matched path: names, and raw values that are still percent-encoded (see
/// [`decode`](crate::decode)). The leftmost parameter has index 0.
#[derive(Clone, Copy, Debug)]
pub struct Values<'r, 'p> {
    /// The route that was found, if any.
    pub(crate) route: Option<&'r Route>,
    pub(crate) parameters: &'p Parameters,
    pub(crate) path: &'p [u8],
}

impl<'r, 'p> Values<'r, 'p> {
    /// The number of parameters.
    #[inline]
    pub fn len(&self) -> usize {
        self.names().len()
    }

    /// Returns whether the route has no parameters.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The names, from the left.
    #[inline]
    pub fn names(&self) -> &'r [Box<str>] {
        self.route.map_or(&[], Route::names)
    }

    /// The raw value of the parameter with this index.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&'p [u8]> {
        let (start, end) = self.bounds(index)?;
        self.path.get(start..end)
    }

    /// The raw value of the parameter with this name. To read the same parameter of many requests,
    /// [`Values::get`] with [`Router::parameter_index`](crate::Router::parameter_index) is faster.
    #[inline]
    pub fn by_name(&self, name: &str) -> Option<&'p [u8]> {
        self.get(self.route?.parameter_index(name)?)
    }

    /// The position in the path of the value of the parameter with this index.
    #[inline]
    pub fn span(&self, index: usize) -> Option<Span> {
        let (start, end) = self.bounds(index)?;
        Some(Span { start: start as u32, end: end as u32 })
    }

    /// Names and raw values, from the left.
    pub fn iter(&self) -> impl Iterator<Item = (&'r str, &'p [u8])> {
        let values = *self;
        let names = values.names().iter().enumerate();
        names.filter_map(move |(index, name)| Some((&**name, values.get(index)?)))
    }

    #[inline]
    fn bounds(&self, index: usize) -> Option<(usize, usize)> {
        match self.parameters.recorded {
            RecordedBounds::Values(count) if index < count.into() => {
                let [start, end] = self.parameters.bounds[index % PARAMETERS_MAX];
                Some((start.into(), end.into()))
            }
            RecordedBounds::Values(_) => None,
            RecordedBounds::Unrecorded => self.search(index),
        }
    }

    #[cold]
    fn search(&self, index: usize) -> Option<(usize, usize)> {
        let position = self.route?.parameter_positions.get(index)?;
        let cursor =
            SlowSlashes { path: self.path, slash_added: false }.seek(position.segment as usize);
        if position.is_catch_all {
            return Some((cursor.start, self.path.len()));
        }
        let segment = self.path.get(cursor.start..cursor.end).unwrap_or_default();
        let prefix = raw_prefix(segment, &position.prefix).unwrap_or(0);
        let suffix = raw_suffix(segment, &position.suffix).unwrap_or(0);
        Some((cursor.start + prefix, cursor.end - suffix))
    }
}

/// A number that is unique for names of up to seven bytes, and usually for longer ones.
#[inline(always)]
pub(crate) fn name_key(name: &str) -> u64 {
    let length = name.len();
    let text = name.as_bytes();
    let first = if length < 8 { read_short(text) } else { read_u64(text, 0) & u64::MAX >> 8 };
    first | (length.min(255) as u64) << 56
}
