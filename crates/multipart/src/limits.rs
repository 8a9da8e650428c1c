//! How much a form may be.

use peregrine_web::middleware::Middleware;
use peregrine_web::{Request, Response, Service};

/// How much a form may hold. Beyond it the peer gets status 413, which names the limit.
///
/// Beside these, the limit of the request's body applies to the form as a whole, 2 MiB unless the route or
/// the server sets another: a route for uploads needs `handler.body_limit(64 << 20)`.
///
/// It is a middleware as well: the forms of the routes that follow in its scope have these limits.
///
/// ```
/// use peregrine::multipart::{Limits, Multipart};
/// use peregrine::web::{App, Problem};
///
/// async fn count(mut form: Multipart) -> Result<String, Problem> {
///     let mut fields = 0;
///     while form.next_field().await?.is_some() {
///         fields += 1;
///     }
///     Ok(fields.to_string())
/// }
///
/// let limits = Limits { fields_max: 10, ..Limits::DEFAULT };
/// let app = App::new().with(limits).post("/count", count);
/// # drop(app);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many parts there may be, files among them. The default is 256.
    pub fields_max: usize,
    /// How many of them may be files. The default is 32.
    pub files_max: usize,
    /// The largest field that is no file, in bytes. The default is 256 KiB.
    pub field_bytes_max: u64,
    /// The largest file, in bytes. The default is 32 MiB.
    pub file_bytes_max: u64,
    /// The content of all parts together, in bytes. The default is 64 MiB.
    pub all_bytes_max: u64,
    /// How many header fields a part may have. The default is 16.
    pub headers_max: usize,
    /// The bytes of a part's header fields together, and of what stands before the first part and after
    /// the last one. The default is 4 KiB.
    pub head_bytes_max: usize,
    /// A file beyond this many bytes is kept in a temporary file, not in memory. The default is 64 KiB.
    pub memory_bytes_max: usize,
}

impl Limits {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        fields_max: 256,
        files_max: 32,
        field_bytes_max: 256 * 1024,
        file_bytes_max: 32 * 1024 * 1024,
        all_bytes_max: 64 * 1024 * 1024,
        headers_max: 16,
        head_bytes_max: 4 * 1024,
        memory_bytes_max: 64 * 1024,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Middleware for Limits {
    async fn run<S: Service>(&self, mut request: Request, next: &S) -> Response {
        request.parts.extensions_mut().insert(*self);
        next.call(request).await
    }
}
