//! How the most recent streams of a connection were closed.

/// How a stream was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseKind {
    /// It was never opened: the client skipped its identifier.
    Unknown,
    /// Both sides ended it.
    EndStream,
    /// The client reset it.
    ResetByPeer,
    /// The server reset it, so frames in transit may still arrive.
    ResetByServer,
}

/// How the last streams were closed, two bits each, to distinguish late frames from invalid ones.
#[derive(Debug)]
pub(super) struct RecentlyClosed {
    low: [u64; REMEMBERED_STREAMS as usize / 64],
    high: [u64; REMEMBERED_STREAMS as usize / 64],
}

/// How many streams, up to the one with the highest identifier, are remembered.
const REMEMBERED_STREAMS: u32 = 256;

impl RecentlyClosed {
    pub(super) const fn new() -> Self {
        Self {
            low: [0; REMEMBERED_STREAMS as usize / 64],
            high: [0; REMEMBERED_STREAMS as usize / 64],
        }
    }

    #[inline]
    const fn bit(id: u32) -> (usize, u64) {
        let at = (id >> 1) % REMEMBERED_STREAMS;
        ((at / 64) as usize, 1 << (at % 64))
    }

    /// Clears the entries for the identifiers after `highest` up to `id`. They replace the entries
    /// of old streams.
    #[inline]
    pub(super) fn advance(&mut self, highest: u32, id: u32) {
        if id - highest == 2 || highest == 0 && id == 1 {
            let (word, bit) = Self::bit(id);
            self.low[word] &= !bit;
            self.high[word] &= !bit;
        } else {
            self.skip(highest, id);
        }
    }

    #[cold]
    fn skip(&mut self, highest: u32, id: u32) {
        let from = (highest + 1).max(id.saturating_sub(2 * REMEMBERED_STREAMS) + 1);
        for skipped in (from..=id).filter(|skipped| skipped % 2 == 1) {
            let (word, bit) = Self::bit(skipped);
            self.low[word] &= !bit;
            self.high[word] &= !bit;
        }
    }

    #[inline]
    pub(super) fn set(&mut self, id: u32, highest: u32, close_kind: CloseKind) {
        if highest - id >= 2 * REMEMBERED_STREAMS {
            return;
        }
        let (word, bit) = Self::bit(id);
        if matches!(close_kind, CloseKind::EndStream | CloseKind::ResetByServer) {
            self.low[word] |= bit;
        }
        if matches!(close_kind, CloseKind::ResetByPeer | CloseKind::ResetByServer) {
            self.high[word] |= bit;
        }
    }

    pub(super) fn get(&self, id: u32, highest: u32) -> CloseKind {
        if highest - id >= 2 * REMEMBERED_STREAMS {
            // Too long ago: treated as if the server had reset it, because ending the connection
            // would be worse.
            return CloseKind::ResetByServer;
        }
        let (word, bit) = Self::bit(id);
        match (self.low[word] & bit != 0, self.high[word] & bit != 0) {
            (false, false) => CloseKind::Unknown,
            (true, false) => CloseKind::EndStream,
            (false, true) => CloseKind::ResetByPeer,
            (true, true) => CloseKind::ResetByServer,
        }
    }
}
