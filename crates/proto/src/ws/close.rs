//! Close codes and close frames.

/// The code of a Close frame. RFC 6455 §7.4, and the registry of IANA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CloseCode(
    /// The number.
    pub u16,
);

impl CloseCode {
    /// The connection has served its purpose.
    pub const NORMAL_CLOSURE: Self = Self(1000);
    /// The endpoint is going away: a server shuts down, or a browser leaves the page.
    pub const GOING_AWAY: Self = Self(1001);
    /// The peer violated the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1002);
    /// The peer sent a kind of message that is not supported.
    pub const UNSUPPORTED_DATA: Self = Self(1003);
    /// The Close frame had no code. Never sent.
    pub const NO_STATUS_RECEIVED: Self = Self(1005);
    /// The connection was lost without a Close frame. Never sent.
    pub const ABNORMAL_CLOSURE: Self = Self(1006);
    /// A message does not match its type: text that is not UTF-8.
    pub const INVALID_PAYLOAD: Self = Self(1007);
    /// A message violates a policy.
    pub const POLICY_VIOLATION: Self = Self(1008);
    /// A message is too long.
    pub const MESSAGE_TOO_BIG: Self = Self(1009);
    /// The client needs an extension that the server did not agree to.
    pub const MANDATORY_EXTENSION: Self = Self(1010);
    /// The server encountered an unexpected error.
    pub const INTERNAL_ERROR: Self = Self(1011);
    /// The service is restarting.
    pub const SERVICE_RESTART: Self = Self(1012);
    /// The service is overloaded.
    pub const TRY_AGAIN_LATER: Self = Self(1013);

    /// Returns whether the code may be sent in a Close frame.
    // RFC 6455 §7.4.1: 1005, 1006 and 1015 MUST NOT be set as a status code in a Close frame.
    // RFC 6455 §7.4.2: 0-999 are not used; 3000-3999 are registered by libraries and frameworks,
    // and 4000-4999 are for private use.
    #[must_use]
    pub const fn is_sendable(self) -> bool {
        matches!(self.0, 1000..=1003 | 1007..=1014 | 3000..=4999)
    }
}

/// The contents of a Close frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close<'a> {
    /// The code; [`CloseCode::NO_STATUS_RECEIVED`] if the frame has none.
    pub code: CloseCode,
    /// The reason, for debugging; at most 123 bytes.
    pub reason: &'a str,
}

/// The longest reason: a control frame's payload without the code.
pub(super) const REASON_BYTES_MAX: usize = super::frame::CONTROL_BYTES_MAX - 2;
