//! Limits of a form.

use peregrine_web::middleware::Middleware;
use peregrine_web::{Request, Response, Service};

/// Limits of a form. A client that exceeds one gets a 413 that names it.
///
/// In addition, the body limit applies to the form as a whole: 2 MiB unless the route or server
/// sets another one. A route for uploads needs `handler.body_limit(64 << 20)`.
///
/// As middleware, it sets the limits of forms for the routes that follow in its scope.
///
/// ```
/// use peregrine::multipart::{MultipartLimits, Multipart};
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
/// let limits = MultipartLimits { fields_max: 10, ..MultipartLimits::DEFAULT };
/// let app = App::new().wrap(limits).post("/count", count);
/// # drop(app);
/// ```
#[doc(alias = "SizeLimit")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultipartLimits {
    /// The maximum number of parts, including files. The default is 256.
    pub fields_max: usize,
    /// The maximum number of files. The default is 32.
    pub files_max: usize,
    /// The maximum size of a field that is not a file, in bytes. The default is 256 KiB.
    pub field_bytes_max: u64,
    /// The maximum size of a file, in bytes. The default is 32 MiB.
    pub file_bytes_max: u64,
    /// The maximum content of all parts in total, in bytes. The default is 64 MiB.
    pub total_bytes_max: u64,
    /// The maximum number of header fields of a part. The default is 16.
    pub part_headers_max: usize,
    /// The maximum size of a part's header fields, and of the data before the first part and after
    /// the last one, in bytes. The default is 4 KiB.
    pub part_headers_bytes_max: usize,
    /// Larger files, in bytes, are stored in a temporary file instead of memory. The default is 64
    /// KiB.
    pub in_memory_bytes_max: usize,
}

impl MultipartLimits {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        fields_max: 256,
        files_max: 32,
        field_bytes_max: 256 * 1024,
        file_bytes_max: 32 * 1024 * 1024,
        total_bytes_max: 64 * 1024 * 1024,
        part_headers_max: 16,
        part_headers_bytes_max: 4 * 1024,
        in_memory_bytes_max: 64 * 1024,
    };
}

impl Default for MultipartLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Middleware for MultipartLimits {
    async fn run<S: Service>(&self, mut request: Request, next: &S) -> Response {
        request.parts.extensions_mut().insert(*self);
        next.call(request).await
    }
}
