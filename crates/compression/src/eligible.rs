//! Which responses may and should be compressed.

use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use peregrine_web::Response;

/// Whether the response's status and fields permit encoding.
pub(crate) fn is_transformable(response: &Response) -> bool {
    let has_content = !response.status.is_informational()
        && !matches!(
            response.status,
            StatusCode::NO_CONTENT
                | StatusCode::RESET_CONTENT
                | StatusCode::NOT_MODIFIED
                | StatusCode::PARTIAL_CONTENT
        );
    let fields = &response.headers;
    // A range refers to the bytes of a representation, so it cannot be encoded.
    has_content
        && fields.get(&CONTENT_ENCODING).is_none()
        && fields.get(&CONTENT_RANGE).is_none()
        && !has_no_transform(response)
}

/// Whether this is part of a response that could be encoded as a whole.
pub(crate) fn is_partial_content(response: &Response) -> bool {
    response.status == StatusCode::PARTIAL_CONTENT
        && response.headers.get(&CONTENT_ENCODING).is_none()
        && !has_no_transform(response)
}

/// RFC 9111, section 5.2.2.6: `no-transform` forbids changing the content.
fn has_no_transform(response: &Response) -> bool {
    let values = response.headers.iter().filter(|(name, _)| **name == CACHE_CONTROL);
    let mut directives = values.flat_map(|(_, value)| value.as_bytes().split(|byte| *byte == b','));
    directives.any(|directive| directive.trim_ascii().eq_ignore_ascii_case(b"no-transform"))
}

/// Returns the media type without parameters, in lower case.
pub(crate) fn essence(response: &Response) -> Option<String> {
    let value = response.headers.get(&CONTENT_TYPE).map(HeaderValue::as_bytes)?;
    let essence = value.split(|byte| *byte == b';').next()?.trim_ascii();
    Some(std::str::from_utf8(essence).ok()?.to_ascii_lowercase())
}

/// Whether content of this type is compressible. Images, audio, archives and most fonts are
/// compressed already.
pub(crate) fn is_compressible(essence: &str) -> bool {
    let Some((kind, name)) = essence.split_once('/') else { return false };
    let has_suffix =
        [".json", "+json", "+xml", "+text", "+yaml"].iter().any(|suffix| name.ends_with(suffix));
    let is_known = match kind {
        "text" => true,
        "application" => matches!(
            name,
            "json"
                | "javascript"
                | "x-javascript"
                | "ecmascript"
                | "xml"
                | "wasm"
                | "ndjson"
                | "x-ndjson"
                | "jsonl"
                | "graphql"
                | "yaml"
                | "toml"
                | "rtf"
                | "sql"
                | "x-www-form-urlencoded"
                | "vnd.ms-fontobject"
                | "x-tar"
        ),
        "font" => matches!(name, "ttf" | "otf" | "collection"),
        "image" => matches!(name, "bmp" | "x-icon" | "vnd.microsoft.icon"),
        "model" => matches!(name, "gltf+json" | "obj" | "stl"),
        _ => false,
    };
    is_known || (has_suffix && kind != "multipart")
}
