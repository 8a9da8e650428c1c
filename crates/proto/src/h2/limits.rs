//! All limits of HTTP/2, with their defaults.

use super::frame::{PAYLOAD_BYTES_CEILING, PAYLOAD_BYTES_DEFAULT, WINDOW_CEILING};
use super::hpack::TABLE_BYTES_DEFAULT;

/// The limits for a peer on one connection. Values are bytes unless stated otherwise. All
/// connections of a server share one instance, so calls that need it take it by reference; limits
/// that were announced to the peer must not change during the lifetime of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The limits of one request, as over HTTP/1: its head, its fields, its content, its trailers.
    /// The head's limit is announced to the peer (SETTINGS_MAX_HEADER_LIST_SIZE).
    pub request: crate::Limits,
    /// How many streams may be open at the same time. Default 128: RFC 9113 §6.5.2 recommends at
    /// least 100, the number that browsers and load generators use. Streams over the limit are
    /// refused. At most 32,768.
    pub concurrent_streams_max: u32,
    /// The initial window of a stream. Default 65,535, which needs no setting: how much an upload
    /// can send in the first round trip.
    pub initial_stream_window: u32,
    /// The maximum size of a stream's window, which grows while its content fills it within a round
    /// trip. Default 4 MiB: 300 Mbit/s over 100 ms.
    pub stream_window_max: u32,
    /// The initial window of a connection. Default 1 MiB: how much unread content a peer can make
    /// the server hold. At least 65,535.
    pub initial_connection_window: u32,
    /// The maximum size of the connection's window. Default 8 MiB.
    pub connection_window_max: u32,
    /// The longest payload of a received frame. Default 16 KiB, the minimum: longer frames would
    /// only delay other streams.
    pub frame_bytes_max: u32,
    /// The longest payload of a sent DATA frame. Default 16 KiB: it fits one TLS record, and limits
    /// how long a more urgent response has to wait.
    pub data_frame_bytes_max: u32,
    /// The dynamic table that the peer fills. Default 4 KiB, which needs no setting. At most
    /// 65,535.
    pub hpack_decoder_table_bytes_max: u32,
    /// The dynamic table for response fields. Default 2 KiB: about thirty fields. At most 65,535.
    pub hpack_encoder_table_bytes_max: u32,
    /// A header block with its continuations, before decoding. Default 64 KiB: twice the limit of a
    /// head, so that a head that is too long can get a 431 response. Exceeding it ends the
    /// connection.
    pub header_block_bytes_max: u32,
    /// How many CONTINUATION frames a block may have. Default 32. Exceeding it ends the connection.
    pub continuation_frames_max: u16,
    /// How many acknowledgements and resets may be pending for a peer that does not read. Default
    /// 1,000. Exceeding it ends the connection.
    pub pending_control_frames_max: u16,
    /// Whether requests for another protocol are accepted as extended CONNECT (RFC 8441). Default
    /// true.
    pub enable_connect_protocol: bool,
    /// The budget for wasted work that a peer causes: the initial and the maximum amount. Default
    /// 2,000, enough for 200 immediate resets. That leaves room for honest clients: a browser that
    /// leaves a page resets about 100 requests. `budget.rs` defines the cost of each action. Resets
    /// have a separate budget of the same size, in which five completed responses pay for one
    /// reset.
    pub abuse_budget_max: u32,
    /// How much of the budget is restored per second. Default 50: five resets, or 25 pings.
    pub abuse_budget_per_second: u32,
}

impl Limits {
    /// All defaults, as a constant.
    pub const DEFAULT: Self = Self {
        request: crate::Limits::DEFAULT,
        concurrent_streams_max: 128,
        initial_stream_window: WINDOW_DEFAULT,
        stream_window_max: 4 << 20,
        initial_connection_window: 1 << 20,
        connection_window_max: 8 << 20,
        frame_bytes_max: PAYLOAD_BYTES_DEFAULT,
        data_frame_bytes_max: PAYLOAD_BYTES_DEFAULT,
        hpack_decoder_table_bytes_max: TABLE_BYTES_DEFAULT,
        hpack_encoder_table_bytes_max: 2048,
        header_block_bytes_max: 64 * 1024,
        continuation_frames_max: 32,
        pending_control_frames_max: 1000,
        enable_connect_protocol: true,
        abuse_budget_max: 2000,
        abuse_budget_per_second: 50,
    };

    /// The longest frame, including its header, that [`receive`](super::Connection::receive) may
    /// need as a whole.
    #[must_use]
    pub const fn receive_buffer_bytes_min(&self) -> usize {
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

/// The maximum number of open streams on a connection, because slot numbers have 16 bits.
pub(super) const STREAMS_CEILING: u32 = 1 << 15;

const _: () = {
    let limits = Limits::DEFAULT;
    assert!(limits.concurrent_streams_max >= 100, "RFC 9113 §6.5.2 recommends it");
    assert!(limits.concurrent_streams_max <= STREAMS_CEILING);
    assert!(
        limits.initial_stream_window <= limits.initial_connection_window,
        "one stream does not exhaust the connection's window"
    );
    assert!(limits.connection_window_max <= WINDOW_CEILING);
    assert!(limits.header_block_bytes_max as usize >= limits.request.head_bytes_max);
};
