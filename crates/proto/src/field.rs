//! What field names and values are made of, and the names that are well known.

macro_rules! known {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A well-known field name. It fits in a byte, and a head's set of them in 64 bits.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Known {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
            /// Any other name; the field's span has it.
            Other,
        }

        impl Known {
            /// Every variant but [`Known::Other`], in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            const NAMES: &'static [&'static str] = &[$($name,)*];
        }
    };
}

known! {
    Host = "host",
    ContentLength = "content-length",
    TransferEncoding = "transfer-encoding",
    Connection = "connection",
    Expect = "expect",
    Upgrade = "upgrade",
    Te = "te",
    Trailer = "trailer",
    KeepAlive = "keep-alive",
    Accept = "accept",
    AcceptCharset = "accept-charset",
    AcceptEncoding = "accept-encoding",
    AcceptLanguage = "accept-language",
    AccessControlRequestHeaders = "access-control-request-headers",
    AccessControlRequestMethod = "access-control-request-method",
    Age = "age",
    Authorization = "authorization",
    CacheControl = "cache-control",
    ContentDisposition = "content-disposition",
    ContentEncoding = "content-encoding",
    ContentLanguage = "content-language",
    ContentLocation = "content-location",
    ContentRange = "content-range",
    ContentType = "content-type",
    Cookie = "cookie",
    Date = "date",
    Dnt = "dnt",
    Forwarded = "forwarded",
    From = "from",
    Http2Settings = "http2-settings",
    IfMatch = "if-match",
    IfModifiedSince = "if-modified-since",
    IfNoneMatch = "if-none-match",
    IfRange = "if-range",
    IfUnmodifiedSince = "if-unmodified-since",
    LastEventId = "last-event-id",
    MaxForwards = "max-forwards",
    Origin = "origin",
    Pragma = "pragma",
    Priority = "priority",
    ProxyAuthorization = "proxy-authorization",
    Range = "range",
    Referer = "referer",
    SecFetchDest = "sec-fetch-dest",
    SecFetchMode = "sec-fetch-mode",
    SecFetchSite = "sec-fetch-site",
    SecFetchUser = "sec-fetch-user",
    SecWebsocketExtensions = "sec-websocket-extensions",
    SecWebsocketKey = "sec-websocket-key",
    SecWebsocketProtocol = "sec-websocket-protocol",
    SecWebsocketVersion = "sec-websocket-version",
    SetCookie = "set-cookie",
    Traceparent = "traceparent",
    Tracestate = "tracestate",
    UpgradeInsecureRequests = "upgrade-insecure-requests",
    UserAgent = "user-agent",
    Via = "via",
    XForwardedFor = "x-forwarded-for",
    XForwardedHost = "x-forwarded-host",
    XForwardedProto = "x-forwarded-proto",
    XRealIp = "x-real-ip",
    XRequestId = "x-request-id",
    XRequestedWith = "x-requested-with",
}

impl Known {
    /// The name in lower case; empty for [`Known::Other`].
    #[must_use]
    pub const fn name(self) -> &'static str {
        if (self as usize) < Self::NAMES.len() { Self::NAMES[self as usize] } else { "" }
    }

    /// The variant of a name, in any case.
    #[inline]
    #[must_use]
    pub fn find(name: &[u8]) -> Self {
        for known in Self::ALL {
            if name.eq_ignore_ascii_case(known.name().as_bytes()) {
                return *known;
            }
        }
        Self::Other
    }

    /// Its bit in a set.
    #[inline]
    pub(crate) const fn bit(self) -> u64 {
        1 << self as u64
    }
}

const _: () = assert!(Known::ALL.len() < 64, "a set of names fits in 64 bits");
