//! Errors of HTTP/2: one variant for each rule that a peer can violate.

use super::frame::ErrorCode;
use std::fmt;

/// The scope of an error. RFC 9113 §5.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorScope {
    /// The connection: GOAWAY.
    Connection,
    /// The stream: RST_STREAM.
    Stream,
}

macro_rules! http2_errors {
    ($($variant:ident: $scope:ident $code:ident $section:literal, $cause:literal;)*) => {
        /// A rule of HTTP/2 that the peer violated, or a limit that it exceeded.
        ///
        /// Violations that apply to every HTTP version are a [`crate::RequestError`] instead, whose
        /// status is sent in a response.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Http2Error {
            $(
                #[doc = concat!($cause, ". ", stringify!($scope), " error ", stringify!($code), ", ", $section, ".")]
                $variant,
            )*
        }

        impl Http2Error {
            /// Every variant, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            const fn parts(self) -> (ErrorScope, ErrorCode, &'static str, &'static str) {
                match self {
                    $(Self::$variant => (ErrorScope::$scope, ErrorCode::$code, $section, $cause),)*
                }
            }
        }
    };
}

http2_errors! {
    PrefaceInvalid: Connection PROTOCOL_ERROR "RFC 9113 §3.4",
        "The connection does not begin with the preface";
    SettingsMissing: Connection PROTOCOL_ERROR "RFC 9113 §3.4",
        "The first frame is not SETTINGS";
    FrameTooLong: Connection FRAME_SIZE_ERROR "RFC 9113 §4.2",
        "A frame is longer than the server accepts";
    StreamZero: Connection PROTOCOL_ERROR "RFC 9113 §6",
        "A frame that belongs to a stream does not name one";
    StreamNotZero: Connection PROTOCOL_ERROR "RFC 9113 §6",
        "A frame that belongs to the connection names a stream";
    StreamIdEven: Connection PROTOCOL_ERROR "RFC 9113 §5.1.1",
        "A client's stream has an even identifier";
    StreamIdNotIncreasing: Connection PROTOCOL_ERROR "RFC 9113 §5.1.1",
        "A new stream has a smaller identifier than an earlier one";
    StreamIdle: Connection PROTOCOL_ERROR "RFC 9113 §5.1",
        "A frame arrived on a stream that was not opened";
    StreamClosed: Connection STREAM_CLOSED "RFC 9113 §5.1",
        "A frame arrived on a stream that both sides had ended";
    StreamHalfClosed: Stream STREAM_CLOSED "RFC 9113 §5.1",
        "A frame arrived on a stream that the client had ended";
    StreamReset: Stream STREAM_CLOSED "RFC 9113 §5.1",
        "A frame arrived on a stream that the client had reset";
    StreamsTooMany: Stream REFUSED_STREAM "RFC 9113 §5.1.2",
        "The client already has as many open streams as it may have";
    PaddingTooLong: Connection PROTOCOL_ERROR "RFC 9113 §6.1",
        "The padding is as long as the frame";
    HeadersTooShort: Connection FRAME_SIZE_ERROR "RFC 9113 §6.2",
        "A HEADERS frame is too short for the priority that its flag announces";
    HeaderBlockInterrupted: Connection PROTOCOL_ERROR "RFC 9113 §6.10",
        "Another frame interrupts a header block";
    ContinuationAlone: Connection PROTOCOL_ERROR "RFC 9113 §6.10",
        "A CONTINUATION frame continues nothing";
    HeaderBlockTooLong: Connection ENHANCE_YOUR_CALM "RFC 9113 §10.5.1",
        "A header block is longer than the server reads, so that later blocks could not be decoded";
    PriorityLength: Stream FRAME_SIZE_ERROR "RFC 9113 §6.3",
        "A PRIORITY frame is not 5 bytes long";
    ResetLength: Connection FRAME_SIZE_ERROR "RFC 9113 §6.4",
        "An RST_STREAM frame is not 4 bytes long";
    SettingsLength: Connection FRAME_SIZE_ERROR "RFC 9113 §6.5",
        "A SETTINGS frame does not hold a whole number of settings";
    SettingsAckLength: Connection FRAME_SIZE_ERROR "RFC 9113 §6.5",
        "A SETTINGS acknowledgement is not empty";
    EnablePushInvalid: Connection PROTOCOL_ERROR "RFC 9113 §6.5.2",
        "SETTINGS_ENABLE_PUSH is neither 0 nor 1";
    InitialWindowSizeInvalid: Connection FLOW_CONTROL_ERROR "RFC 9113 §6.5.2",
        "SETTINGS_INITIAL_WINDOW_SIZE is larger than any window may be";
    MaxFrameSizeInvalid: Connection PROTOCOL_ERROR "RFC 9113 §6.5.2",
        "SETTINGS_MAX_FRAME_SIZE is not a length that frames may have";
    EnableConnectProtocolInvalid: Connection PROTOCOL_ERROR "RFC 8441 §3",
        "SETTINGS_ENABLE_CONNECT_PROTOCOL is neither 0 nor 1";
    NoRfc7540PrioritiesInvalid: Connection PROTOCOL_ERROR "RFC 9218 §2.1",
        "SETTINGS_NO_RFC7540_PRIORITIES is neither 0 nor 1";
    PushPromise: Connection PROTOCOL_ERROR "RFC 9113 §8.4",
        "A client cannot push";
    PingLength: Connection FRAME_SIZE_ERROR "RFC 9113 §6.7",
        "A PING frame is not 8 bytes long";
    GoAwayLength: Connection FRAME_SIZE_ERROR "RFC 9113 §6.8",
        "A GOAWAY frame is shorter than 8 bytes";
    WindowUpdateLength: Connection FRAME_SIZE_ERROR "RFC 9113 §6.9",
        "A WINDOW_UPDATE frame is not 4 bytes long";
    WindowZero: Connection PROTOCOL_ERROR "RFC 9113 §6.9",
        "A WINDOW_UPDATE frame adds nothing to the connection's window";
    StreamWindowZero: Stream PROTOCOL_ERROR "RFC 9113 §6.9",
        "A WINDOW_UPDATE frame adds nothing to a stream's window";
    WindowOverflow: Connection FLOW_CONTROL_ERROR "RFC 9113 §6.9.1",
        "The connection's window is larger than any window may be";
    StreamWindowOverflow: Stream FLOW_CONTROL_ERROR "RFC 9113 §6.9.1",
        "A stream's window is larger than any window may be";
    InitialWindowOverflow: Connection FLOW_CONTROL_ERROR "RFC 9113 §6.9.2",
        "A new initial window makes a stream's window larger than any window may be";
    WindowExceeded: Connection FLOW_CONTROL_ERROR "RFC 9113 §6.9.1",
        "More content arrived than the connection's window had room for";
    StreamWindowExceeded: Stream FLOW_CONTROL_ERROR "RFC 9113 §6.9.1",
        "More content arrived than the stream's window had room for";
    PriorityUpdateLength: Connection FRAME_SIZE_ERROR "RFC 9218 §7.1",
        "A PRIORITY_UPDATE frame is shorter than 4 bytes";
    PriorityUpdateStream: Connection PROTOCOL_ERROR "RFC 9218 §7.1",
        "A PRIORITY_UPDATE frame does not name a stream of the client";
    IndexInvalid: Connection COMPRESSION_ERROR "RFC 7541 §2.3.3",
        "A header block names an entry that the tables do not have";
    IntegerTooLarge: Connection COMPRESSION_ERROR "RFC 7541 §5.1",
        "A number in a header block is larger than any valid one";
    HeaderBlockTruncated: Connection COMPRESSION_ERROR "RFC 9113 §4.3",
        "A header block ends in the middle of a field";
    HuffmanInvalid: Connection COMPRESSION_ERROR "RFC 7541 §5.2",
        "A Huffman-coded string has an invalid code or wrong padding";
    SizeUpdateTooLarge: Connection COMPRESSION_ERROR "RFC 7541 §6.3",
        "The dynamic table is made larger than the server allows";
    SizeUpdateMisplaced: Connection COMPRESSION_ERROR "RFC 7541 §4.2",
        "The dynamic table's size is changed after the first field of a block";
    SizeUpdateMissing: Connection COMPRESSION_ERROR "RFC 7541 §4.2",
        "The dynamic table's size was not changed after the server's setting was";
    HeaderListTooLarge: Connection ENHANCE_YOUR_CALM "RFC 9113 §10.5.1",
        "The fields of a header block are many times longer than the server reads";
    FieldNameUppercase: Stream PROTOCOL_ERROR "RFC 9113 §8.2.1",
        "A field name has an upper-case letter";
    FieldNameInvalid: Stream PROTOCOL_ERROR "RFC 9113 §8.2.1",
        "A field name is empty, or has a byte that a name must not have";
    FieldValueInvalid: Stream PROTOCOL_ERROR "RFC 9113 §8.2.1",
        "A field value has a control byte, or white space at one of its ends";
    ConnectionSpecificField: Stream PROTOCOL_ERROR "RFC 9113 §8.2.2",
        "A field is specific to HTTP/1 connections";
    TeInvalid: Stream PROTOCOL_ERROR "RFC 9113 §8.2.2",
        "The TE field has a value other than trailers";
    PseudoHeaderUnknown: Stream PROTOCOL_ERROR "RFC 9113 §8.3",
        "A pseudo-field is not one of a request";
    PseudoHeaderRepeated: Stream PROTOCOL_ERROR "RFC 9113 §8.3",
        "A pseudo-field occurs more than once";
    PseudoHeaderAfterField: Stream PROTOCOL_ERROR "RFC 9113 §8.3",
        "A pseudo-field follows a regular field";
    PseudoHeaderInTrailers: Stream PROTOCOL_ERROR "RFC 9113 §8.1",
        "The trailers have a pseudo-field";
    PseudoHeaderMissing: Stream PROTOCOL_ERROR "RFC 9113 §8.3.1",
        "A request has no method, no scheme or no path";
    PathEmpty: Stream PROTOCOL_ERROR "RFC 9113 §8.3.1",
        "The path is empty";
    AuthorityMismatch: Stream PROTOCOL_ERROR "RFC 9113 §8.3.1",
        "The Host field and the authority name different hosts";
    ConnectInvalid: Stream PROTOCOL_ERROR "RFC 9113 §8.5",
        "A CONNECT request has a scheme or a path, or no authority";
    ProtocolMisplaced: Stream PROTOCOL_ERROR "RFC 8441 §4",
        "A protocol is valid with CONNECT only";
    TrailersWithoutEndStream: Stream PROTOCOL_ERROR "RFC 9113 §8.1",
        "Trailers do not end the stream";
    ContentLengthMismatch: Stream PROTOCOL_ERROR "RFC 9113 §8.1.1",
        "The content does not have the length that the head gives";
    AbuseBudgetExhausted: Connection ENHANCE_YOUR_CALM "RFC 9113 §10.5",
        "The client makes the server do more work for nothing than it accepts";
    PendingControlFramesExceeded: Connection ENHANCE_YOUR_CALM "RFC 9113 §10.5",
        "The client asks for answers and does not read them";
    UnexpectedEof: Connection PROTOCOL_ERROR "RFC 9113 §5.4.1",
        "The connection ended within a frame";
}

impl Http2Error {
    /// The scope of the error.
    #[inline]
    #[must_use]
    pub const fn scope(self) -> ErrorScope {
        self.parts().0
    }

    /// The error code sent to the peer.
    #[inline]
    #[must_use]
    pub const fn code(self) -> ErrorCode {
        self.parts().1
    }

    /// The section of the standard that contains the rule: `RFC 9113 §6.1`.
    #[must_use]
    pub const fn section(self) -> &'static str {
        self.parts().2
    }

    /// The violated rule, in one sentence without its full stop.
    #[must_use]
    pub const fn rule(self) -> &'static str {
        self.parts().3
    }
}

impl fmt::Display for Http2Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.rule(), self.section())
    }
}

impl std::error::Error for Http2Error {}
