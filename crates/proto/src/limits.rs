//! All limits of a request, with their defaults.

/// The limits for a peer. Values are bytes unless stated otherwise; values equal to a limit are
/// allowed, exceeding one is a [`RequestError`](crate::RequestError). All connections of a server
/// share one instance, so calls that need it take it by reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A whole head: request line, fields and the empty line that ends them. Default 32 KiB. At
    /// most 65,535; larger values are reduced to that. If exceeded: 431.
    pub head_bytes_max: usize,
    /// The request line with its line end. Default 8 KiB. If exceeded: 414.
    pub request_line_bytes_max: usize,
    /// One field line with its line end. Default 16 KiB. If exceeded: 431.
    pub field_bytes_max: usize,
    /// How many field lines a head may have, and how many a trailer section. Default 100. If
    /// exceeded: 431.
    pub fields_max: usize,
    /// The content of one request, in bytes. Default 2 MiB; `u64::MAX` for no limit. If exceeded:
    /// 413, immediately if the head contains the length, otherwise at the chunk that exceeds it.
    pub body_bytes_max: u64,
    /// The extensions of one chunk, from the first byte after its size to its line end. Default
    /// 256. If exceeded: 400; also if the extensions of all chunks are more than 16 KiB longer than
    /// the content so far.
    pub chunk_extension_bytes_max: u16,
    /// A whole trailer section with its line ends. Default 8 KiB. At most 65,535; larger values are
    /// reduced to that. If exceeded: 431.
    pub trailer_bytes_max: usize,
    /// How much of a request's content is read and discarded if its response is complete before it,
    /// so that the connection can be used again. Default 256 KiB. If exceeded, the connection
    /// closes.
    pub drain_bytes_max: u32,
}

impl Limits {
    /// All defaults, as a constant.
    pub const DEFAULT: Self = Self {
        head_bytes_max: 32 * 1024,
        request_line_bytes_max: 8 * 1024,
        field_bytes_max: 16 * 1024,
        fields_max: 100,
        body_bytes_max: 2 * 1024 * 1024,
        chunk_extension_bytes_max: 256,
        trailer_bytes_max: 8 * 1024,
        drain_bytes_max: 256 * 1024,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The longest possible head, because a [`Span`](crate::Span) has 16-bit offsets.
pub const HEAD_BYTES_CEILING: usize = u16::MAX as usize;

/// The longest method that is accepted, in bytes. The longest registered method has 17.
pub const METHOD_BYTES_MAX: usize = 32;

const _: () = {
    let limits = Limits::DEFAULT;
    assert!(limits.head_bytes_max <= HEAD_BYTES_CEILING, "spans have 16-bit offsets");
    assert!(limits.request_line_bytes_max <= limits.head_bytes_max);
    assert!(limits.field_bytes_max <= limits.head_bytes_max);
    assert!(limits.trailer_bytes_max <= HEAD_BYTES_CEILING);
    assert!(METHOD_BYTES_MAX < limits.request_line_bytes_max);
    // RFC 9112 §3: it is recommended to support request lines of at least 8000 octets.
    assert!(limits.request_line_bytes_max >= 8000);
};
