//! Everything of HTTP/2 that has a limit, with its default.

use super::frame::{PAYLOAD_BYTES_CEILING, PAYLOAD_BYTES_DEFAULT, WINDOW_CEILING};
use super::hpack::TABLE_BYTES_DEFAULT;

/// The most a peer may do on one connection. Values are bytes unless said otherwise. All connections of
/// a server share one, so the calls that need it take it by reference; limits that were told to the
/// peer must not change while a connection lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// What one request may have, as over HTTP/1: its head, its fields, its content, its trailers. The
    /// head's limit is told to the peer (SETTINGS_MAX_HEADER_LIST_SIZE).
    pub request: crate::Limits,
    /// How many streams may be open at once. Default 128: RFC 9113 §6.5.2 recommends no less than 100,
    /// which is also what load tools and browsers use. More are refused. At most 32,768.
    pub streams_max: u32,
    /// The window of a new stream. Default 65,535, which needs no setting: what an upload can send
    /// before the first round trip is over.
    pub stream_window: u32,
    /// How far a stream's window grows while its content fills it within a round trip. Default 4 MiB:
    /// 300 Mbit/s over 100 ms.
    pub stream_window_max: u32,
    /// The window of a new connection. Default 1 MiB: how much unread content a peer can make the
    /// server hold. No less than 65,535.
    pub connection_window: u32,
    /// How far the connection's window grows. Default 8 MiB.
    pub connection_window_max: u32,
    /// The longest payload of a frame. Default 16 KiB, the least that is allowed: longer frames would
    /// only keep others waiting.
    pub frame_bytes_max: u32,
    /// The longest payload of a DATA frame that is sent. Default 16 KiB: it takes one TLS record, and
    /// a more urgent response waits for no more.
    pub data_bytes_max: u32,
    /// The dynamic table that the peer fills. Default 4 KiB, which needs no setting. At most 65,535.
    pub decoder_table_bytes_max: u32,
    /// The dynamic table of the responses' fields. Default 2 KiB: some thirty fields. At most 65,535.
    pub encoder_table_bytes_max: u32,
    /// A header block with its continuations, before it is decoded. Default 64 KiB: twice what a head
    /// may have, so that a head that is too long can be answered with 431. Passing it ends the
    /// connection.
    pub block_bytes_max: u32,
    /// How many CONTINUATION frames a block may have. Default 32. Passing it ends the connection.
    pub continuations_max: u16,
    /// How many answers (acknowledgements, resets) may wait for a peer that does not read. Default
    /// 1,000. Passing it ends the connection.
    pub answers_max: u16,
    /// Whether requests for another protocol are taken by extended CONNECT (RFC 8441). Default true.
    pub connect_protocol: bool,
    /// The budget for what a peer makes the server do for nothing: the most that is saved up, and what
    /// a connection begins with. Default 2,000, which is 200 requests that are reset at once.
    /// [`Limits::DEFAULT`] leaves room for honest clients: a browser that leaves a page resets some 100
    /// requests. `budget.rs` has the cost of each deed. Resets have an account of this size of
    /// their own, of which five complete responses pay for one.
    pub budget_max: u32,
    /// How much of the budget comes back each second. Default 50: five resets, or 25 pings.
    pub budget_per_second: u32,
}

impl Limits {
    /// The default of every limit, as a constant.
    pub const DEFAULT: Self = Self {
        request: crate::Limits::DEFAULT,
        streams_max: 128,
        stream_window: WINDOW_DEFAULT,
        stream_window_max: 4 << 20,
        connection_window: 1 << 20,
        connection_window_max: 8 << 20,
        frame_bytes_max: PAYLOAD_BYTES_DEFAULT,
        data_bytes_max: PAYLOAD_BYTES_DEFAULT,
        decoder_table_bytes_max: TABLE_BYTES_DEFAULT,
        encoder_table_bytes_max: 2048,
        block_bytes_max: 64 * 1024,
        continuations_max: 32,
        answers_max: 1000,
        connect_protocol: true,
        budget_max: 2000,
        budget_per_second: 50,
    };

    /// The longest frame, with its header, that [`receive`](super::Connection::receive) may need as a
    /// whole.
    #[must_use]
    pub const fn frame_bytes(&self) -> usize {
        super::frame::HEADER_BYTES + self.payload_bytes_max() as usize
    }

    /// The longest payload, within the bounds for all frames.
    pub(super) const fn payload_bytes_max(&self) -> u32 {
        let bytes = self.frame_bytes_max;
        if bytes < PAYLOAD_BYTES_DEFAULT {
            PAYLOAD_BYTES_DEFAULT
        } else if bytes > PAYLOAD_BYTES_CEILING {
            PAYLOAD_BYTES_CEILING
        } else {
            bytes
        }
    }

    /// The limit on fields, as counted by RFC 9113 §6.5.2.
    pub(super) fn fields_bytes_max(&self) -> u32 {
        let bytes = self.request.head_bytes_max.min(crate::limits::HEAD_BYTES_CEILING);
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The window before any setting. RFC 9113 §6.9.2.
pub(super) const WINDOW_DEFAULT: u32 = 65_535;

/// The most streams that a connection can have open, because places have 16 bits.
pub(super) const STREAMS_CEILING: u32 = 1 << 15;

const _: () = {
    let limits = Limits::DEFAULT;
    assert!(limits.streams_max >= 100, "RFC 9113 §6.5.2 recommends it");
    assert!(limits.streams_max <= STREAMS_CEILING);
    assert!(limits.stream_window <= limits.connection_window, "one stream fills no connection");
    assert!(limits.connection_window_max <= WINDOW_CEILING);
    assert!(limits.block_bytes_max as usize >= limits.request.head_bytes_max);
};
