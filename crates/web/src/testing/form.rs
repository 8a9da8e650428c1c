//! Multipart forms, as a browser sends them.

use super::TestRequest;
use bytes::Bytes;

/// A form with files (RFC 7578), for [`TestRequest::multipart`].
///
/// ```
/// use peregrine::web::testing::TestForm;
/// use peregrine::web::App;
///
/// let client = App::new().post("/", |body: String| body).test();
/// let form = TestForm::new().text("name", "Ada").file("photo", "ada.png", "image/png", "PNG");
/// let sent = client.post("/").multipart(form).send_blocking().text();
/// assert!(sent.contains("name=\"photo\"; filename=\"ada.png\"\r\n"));
/// assert!(sent.contains("content-type: image/png\r\n\r\nPNG\r\n"));
/// ```
#[doc(alias = "MultipartForm")]
#[derive(Clone, Debug, Default)]
pub struct TestForm {
    parts: Vec<(String, Bytes)>,
}

impl TestForm {
    /// Creates a form without fields.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a text field.
    #[must_use]
    pub fn text(self, name: &str, value: impl Into<String>) -> Self {
        let head = format!("content-disposition: form-data; name=\"{}\"\r\n", escape_name(name));
        self.part(head, value.into().into())
    }

    /// Adds a file with its name, media type and content.
    #[must_use]
    pub fn file(
        self,
        name: &str,
        file_name: &str,
        media_type: &str,
        content: impl Into<Bytes>,
    ) -> Self {
        let (name, file_name) = (escape_name(name), escape_name(file_name));
        let head = format!(
            "content-disposition: form-data; name=\"{name}\"; filename=\"{file_name}\"\r\n\
             content-type: {media_type}\r\n"
        );
        self.part(head, content.into())
    }

    /// Adds a part with these header lines, each including its line break, to test input that
    /// browsers do not send.
    #[must_use]
    pub fn part(mut self, head: impl Into<String>, content: Bytes) -> Self {
        self.parts.push((head.into(), content));
        self
    }

    /// Returns the boundary, which no content contains, and the body.
    fn encode(&self) -> (String, Vec<u8>) {
        let contains = |text: &str| {
            let text = text.as_bytes();
            self.parts
                .iter()
                .any(|(_, content)| content.windows(text.len()).any(|window| window == text))
        };
        let boundary = (0_u32..).map(|suffix| format!("peregrine-test-{suffix}"));
        let boundary = boundary.into_iter().find(|boundary| !contains(boundary));
        let boundary = boundary.expect("finite content cannot contain every boundary");
        let mut body = Vec::new();
        for (head, content) in &self.parts {
            body.extend_from_slice(format!("--{boundary}\r\n{head}\r\n").as_bytes());
            body.extend_from_slice(content);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        (boundary, body)
    }
}

impl TestRequest {
    /// Sets the body to a form with files, and the `Content-Type`.
    pub fn multipart(self, form: TestForm) -> Self {
        let (boundary, body) = form.encode();
        self.header("content-type", format!("multipart/form-data; boundary={boundary}")).body(body)
    }
}

/// Escapes a name as the HTML standard does for form fields.
fn escape_name(name: &str) -> String {
    name.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chooses_an_unused_boundary_and_escapes_names() {
        let form = TestForm::new().text("a\"\r\nb", "peregrine-test-0 peregrine-test-1");
        let (boundary, body) = form.encode();
        assert_eq!(boundary, "peregrine-test-2");
        let text = String::from_utf8(body).expect("text");
        assert_eq!(
            text,
            "--peregrine-test-2\r\ncontent-disposition: form-data; name=\"a%22%0D%0Ab\"\r\n\r\n\
             peregrine-test-0 peregrine-test-1\r\n--peregrine-test-2--\r\n"
        );
        let (_, empty_body) = TestForm::new().encode();
        assert_eq!(empty_body, b"--peregrine-test-0--\r\n");
    }
}
