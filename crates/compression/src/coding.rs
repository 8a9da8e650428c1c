//! Content codings.

use std::fmt;

/// A content coding. Each has a feature of this crate.
#[doc(alias = "Encoding")]
#[doc(alias = "CompressionAlgo")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ContentCoding {
    /// Zstandard (RFC 8878): fast, and about as small as Brotli at these levels.
    #[cfg(feature = "zstd")]
    Zstd,
    /// Brotli (RFC 7932). Browsers accept it over TLS only.
    #[cfg(feature = "br")]
    Br,
    /// gzip (RFC 1952), which every client supports.
    #[cfg(feature = "gzip")]
    Gzip,
    /// zlib (RFC 1950), which HTTP calls deflate.
    #[cfg(feature = "deflate")]
    Deflate,
}

impl ContentCoding {
    /// All compiled codings, in the server's order of preference.
    pub const ALL: &[Self] = &[
        #[cfg(feature = "zstd")]
        Self::Zstd,
        #[cfg(feature = "br")]
        Self::Br,
        #[cfg(feature = "gzip")]
        Self::Gzip,
        #[cfg(feature = "deflate")]
        Self::Deflate,
    ];

    /// The coding's name in HTTP.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            #[cfg(feature = "zstd")]
            Self::Zstd => "zstd",
            #[cfg(feature = "br")]
            Self::Br => "br",
            #[cfg(feature = "gzip")]
            Self::Gzip => "gzip",
            #[cfg(feature = "deflate")]
            Self::Deflate => "deflate",
        }
    }

    /// The coding of this name, in any case.
    #[must_use]
    pub fn from_name(name: &[u8]) -> Option<Self> {
        // RFC 9110 §8.4.1.3: "x-gzip" is equivalent to "gzip".
        let name = if name.eq_ignore_ascii_case(b"x-gzip") { b"gzip" } else { name };
        Self::ALL.iter().copied().find(|coding| name.eq_ignore_ascii_case(coding.name().as_bytes()))
    }

    /// The names of all codings, as a list.
    pub(crate) fn names() -> String {
        let names: Vec<_> = Self::ALL.iter().map(|coding| coding.name()).collect();
        names.join(", ")
    }
}

impl fmt::Display for ContentCoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
