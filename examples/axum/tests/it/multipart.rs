//! Builds the bodies of forms with files.

/// The boundary between the parts.
const BOUNDARY: &str = "a-line-that-is-in-no-file";

/// The media type of the bodies from [`form`].
pub(crate) fn kind() -> String {
    format!("multipart/form-data; boundary={BOUNDARY}")
}

/// A form with files, each with a field name, a file name, a media type and content.
pub(crate) fn form(files: &[(&str, &str, &str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, file, kind, content) in files {
        let head = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"; \
             filename=\"{file}\"\r\nContent-Type: {kind}\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    body
}
