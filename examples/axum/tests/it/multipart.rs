//! Bodies of forms with files, written by hand.

/// What parts are separated by.
const BOUNDARY: &str = "a-line-that-is-in-no-file";

/// The media type of what [`form`] makes.
pub(crate) fn kind() -> String {
    format!("multipart/form-data; boundary={BOUNDARY}")
}

/// A form of files: the field's name, the file's, its type and its content.
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
