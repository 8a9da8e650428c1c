//! A mark of responses that have a secret.

use super::IntoResponseParts;
use crate::problem::Problem;
use crate::response::Response;

/// Keeps a response from being compressed, for one that has a secret beside something of the request's: its length would tell of
/// it (BREACH). It goes before the body, as a header field does. Whoever keeps responses keeps it with them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Uncompressed;

impl Uncompressed {
    /// Is the response not to be compressed?
    #[must_use]
    pub fn is_on(response: &Response) -> bool {
        response.extensions().is_some_and(|all| all.get::<Self>().is_some())
    }

    /// Keeps `response` from being compressed.
    pub fn put_on(self, response: &mut Response) {
        response.extensions_mut().insert(self);
    }
}

impl IntoResponseParts for Uncompressed {
    fn into_response_parts(self, response: &mut Response) -> Result<(), Problem> {
        self.put_on(response);
        Ok(())
    }
}
