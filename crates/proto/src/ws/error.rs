//! Errors of WebSocket: one variant for each rule that a peer can violate.

use super::close::CloseCode;
use std::fmt;

macro_rules! websocket_errors {
    ($($variant:ident: $code:ident $section:literal, $cause:literal;)*) => {
        /// A rule of WebSocket that the peer violated, or a limit that it exceeded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum WebSocketError {
            $(
                #[doc = concat!($cause, ". ", stringify!($code), ", ", $section, ".")]
                $variant,
            )*
        }

        impl WebSocketError {
            /// Every variant, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            const fn parts(self) -> (CloseCode, &'static str, &'static str) {
                match self {
                    $(Self::$variant => (CloseCode::$code, $section, $cause),)*
                }
            }
        }
    };
}

websocket_errors! {
    NonZeroReservedBits: PROTOCOL_ERROR "RFC 6455 §5.2",
        "A reserved bit is set, and no extension gives it a meaning";
    UnexpectedRsv1: PROTOCOL_ERROR "RFC 7692 §6.1",
        "A frame that does not begin a message says that it is compressed";
    OpcodeReserved: PROTOCOL_ERROR "RFC 6455 §5.2",
        "The opcode is reserved";
    ControlFragmented: PROTOCOL_ERROR "RFC 6455 §5.5",
        "A control frame is fragmented";
    ControlTooLong: PROTOCOL_ERROR "RFC 6455 §5.5",
        "A control frame has more than 125 bytes";
    ContinuationAlone: PROTOCOL_ERROR "RFC 6455 §5.4",
        "A frame continues a message that has not begun";
    MessageInterrupted: PROTOCOL_ERROR "RFC 6455 §5.4",
        "A message begins within another one";
    MaskMissing: PROTOCOL_ERROR "RFC 6455 §5.1",
        "A client's frame is not masked";
    MaskForbidden: PROTOCOL_ERROR "RFC 6455 §5.1",
        "A server's frame is masked";
    LengthNotMinimal: PROTOCOL_ERROR "RFC 6455 §5.2",
        "A length has more bytes than it needs";
    LengthTooLarge: PROTOCOL_ERROR "RFC 6455 §5.2",
        "A length has its highest bit set";
    CloseTooShort: PROTOCOL_ERROR "RFC 6455 §5.5.1",
        "A Close frame has half a code";
    CloseCodeInvalid: PROTOCOL_ERROR "RFC 6455 §7.4",
        "The code of a Close frame may not be sent";
    CloseReasonInvalid: INVALID_PAYLOAD "RFC 6455 §5.5.1",
        "The reason of a Close frame is not UTF-8";
    TextInvalid: INVALID_PAYLOAD "RFC 6455 §8.1",
        "A text is not UTF-8";
    DeflateInvalid: INVALID_PAYLOAD "RFC 7692 §7.2.2",
        "A compressed message cannot be inflated";
    FrameTooLong: MESSAGE_TOO_BIG "RFC 6455 §10.4",
        "A frame is longer than this endpoint accepts";
    MessageTooLong: MESSAGE_TOO_BIG "RFC 6455 §10.4",
        "A message is longer than this endpoint accepts";
    AbuseBudgetExhausted: POLICY_VIOLATION "RFC 6455 §10.4",
        "The peer makes this endpoint do more work for nothing than it accepts";
    PendingPongsExceeded: POLICY_VIOLATION "RFC 6455 §10.4",
        "The peer asks for answers and does not read them";
    ConnectionLost: ABNORMAL_CLOSURE "RFC 6455 §7.1.5",
        "The connection ended without a Close frame";
}

impl WebSocketError {
    /// The code sent to the peer; for [`ConnectionLost`](Self::ConnectionLost), which cannot be
    /// sent, the code that represents it.
    #[inline]
    #[must_use]
    pub const fn code(self) -> CloseCode {
        self.parts().0
    }

    /// The section of the standard that contains the rule: `RFC 6455 §5.2`.
    #[must_use]
    pub const fn section(self) -> &'static str {
        self.parts().1
    }

    /// The violated rule, in one sentence without its full stop. At most 123 bytes: it is sent to
    /// the peer as the reason.
    #[must_use]
    pub const fn rule(self) -> &'static str {
        self.parts().2
    }
}

impl fmt::Display for WebSocketError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.rule(), self.section())
    }
}

impl std::error::Error for WebSocketError {}
