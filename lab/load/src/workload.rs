//! What is asked, and which answer is right.

use crate::client::fault::Fault;
use crate::client::reply::Reply;

const PROJECT_BODY: &str = concat!(
    r#"{"name":"deploy","quantity":7,"tags":["api","bench","native"],"#,
    r#""metadata":{"region":"eu","tier":"gold","source":"livebench"}}"#
);

/// The checksum is SHA-256 over `p42|acme|req-7|deploy|7`, in lower-case hexadecimal digits.
const PROJECT_REPLY: &str = concat!(
    r#"{"projectID":"p42","tenant":"acme","requestID":"req-7","name":"deploy","quantity":7,"#,
    r#""checksum":"511dce168d631b12684293e2646df24a5c4b104823b5e8f896816da62b64224c"}"#
);

const JSON_REPLY: &str = r#"{"message":"Hello, World!"}"#;

/// One kind of request, how it is sent, and the only reply that counts.
#[derive(Debug, Clone)]
pub struct Workload {
    /// The name on the command line and in the report.
    pub name: String,
    /// The bytes of one request.
    pub request: Vec<u8>,
    /// How many requests a connection has under way, at least 1. Over HTTP/1.1 they are sent
    /// together, and the next ones when all are answered; over HTTP/2 each on a stream of its own,
    /// and the next one when any is answered, as far as the server allows so many streams.
    pub depth: usize,
    /// Whether they are asked over HTTP/2.
    pub is_http2: bool,
    /// Whether the bodies of requests are sent as messages of a WebSocket, which is opened with their
    /// heads. The answers are messages as well.
    pub is_websocket: bool,
    /// Whether the bytes go through TLS 1.3.
    pub is_tls: bool,
    /// The only right answer.
    pub answer: Answer,
    /// Further requests with their own answers, where values differ from request to request: each
    /// connection asks all of them in turn, beginning at one that its place among the connections
    /// decides. Empty: every request is alike.
    pub others: Vec<Asked>,
}

/// A request and the only right answer to it.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The bytes of the request.
    pub request: Vec<u8>,
    /// The only right answer.
    pub answer: Answer,
}

/// The only right answer to a workload's request.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Fields that must be there, by name in any case. A media type may carry parameters.
    pub fields: Vec<(String, String)>,
    /// The body.
    pub body: ExpectedBody,
    /// Trailer fields that must be there with these values.
    pub trailers: Vec<(String, String)>,
    /// Whether the body may come in gzip, because the request says so.
    pub takes_gzip: bool,
}

/// Which bodies are right.
#[derive(Debug, Clone)]
pub enum ExpectedBody {
    /// These bytes and no others.
    Exact(Vec<u8>),
    /// The same JSON value, spelled in any way; these bytes are compared first.
    Json(Vec<u8>),
    /// Any bytes of this length.
    Length(usize),
}

impl Workload {
    /// The names that [`Workload::named`] knows.
    pub const NAMES: [&'static str; 4] =
        ["get-json", "pipelined", "post-project-work", "https-json"];

    /// The workload of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Workload> {
        match name {
            "get-json" => Some(Workload::get_json("get-json", 1, false)),
            "pipelined" => Some(Workload::get_json("pipelined", 16, false)),
            "https-json" => Some(Workload::get_json("https-json", 1, true)),
            "post-project-work" => Some(Workload::post_project_work()),
            _ => None,
        }
    }

    /// The bytes of the request of this number, on its connection.
    #[must_use]
    pub fn request_at(&self, number: usize) -> &[u8] {
        match number % self.variants() {
            0 => &self.request,
            place => &self.others[place - 1].request,
        }
    }

    /// How many requests with answers of their own there are.
    #[must_use]
    pub fn variants(&self) -> usize {
        self.others.len() + 1
    }

    /// The only right answer to the request of this number.
    #[must_use]
    pub fn answer_at(&self, number: usize) -> &Answer {
        match number % self.variants() {
            0 => &self.answer,
            place => &self.others[place - 1].answer,
        }
    }

    fn get_json(name: &str, depth: usize, is_tls: bool) -> Workload {
        Workload {
            name: name.to_owned(),
            request: b"GET /json HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            depth,
            is_http2: false,
            is_websocket: false,
            is_tls,
            answer: Answer {
                status: 200,
                fields: fields(&[("content-type", "application/json")]),
                body: ExpectedBody::Exact(JSON_REPLY.into()),
                trailers: Vec::new(),
                takes_gzip: false,
            },
            others: Vec::new(),
        }
    }

    fn post_project_work() -> Workload {
        let request = format!(
            "POST /projects/p42/events?tenant=acme&include=audit HTTP/1.1\r\n\
             Host: localhost\r\n\
             Content-Type: application/json\r\n\
             X-Request-ID: req-7\r\n\
             Content-Length: {}\r\n\r\n{PROJECT_BODY}",
            PROJECT_BODY.len()
        );
        Workload {
            name: "post-project-work".to_owned(),
            request: request.into_bytes(),
            depth: 1,
            is_http2: false,
            is_websocket: false,
            is_tls: false,
            answer: Answer {
                status: 201,
                fields: fields(&[
                    ("content-type", "application/json"),
                    ("x-benchmark-after", "done"),
                ]),
                body: ExpectedBody::Json(PROJECT_REPLY.into()),
                trailers: Vec::new(),
                takes_gzip: false,
            },
            others: Vec::new(),
        }
    }
}

impl Answer {
    /// Whether the reply is the right one, and what is wrong if not: the status is judged first,
    /// then the body, then the fields, then the trailer fields.
    ///
    /// # Errors
    ///
    /// [`Fault::WrongStatus`], [`Fault::WrongBody`], [`Fault::WrongHeader`] or
    /// [`Fault::WrongTrailer`].
    pub fn check(&self, reply: &Reply<'_>) -> Result<(), Fault> {
        if reply.status != self.status {
            return Err(Fault::WrongStatus);
        }
        let is_right = |body: &[u8]| match &self.body {
            ExpectedBody::Exact(expected) => *body == **expected,
            ExpectedBody::Json(expected) => is_same_json(body, expected),
            ExpectedBody::Length(length) => body.len() == *length,
        };
        let is_coded = self.takes_gzip && reply.is_gzip();
        if !(if is_coded { is_right(&reply.gunzip()?) } else { is_right(&reply.body) }) {
            return Err(Fault::WrongBody);
        }
        for (name, expected) in &self.fields {
            let Some(value) = reply.field(name) else { return Err(Fault::WrongHeader) };
            if !is_same_value(value, expected.as_bytes()) {
                return Err(Fault::WrongHeader);
            }
        }
        for (name, expected) in &self.trailers {
            if reply.trailer(name) != Some(expected.as_bytes()) {
                return Err(Fault::WrongTrailer);
            }
        }
        Ok(())
    }

    /// The bytes of a right reply, as the null server sends it.
    #[must_use]
    pub fn example(&self) -> Vec<u8> {
        let body = match &self.body {
            ExpectedBody::Exact(body) | ExpectedBody::Json(body) => body.clone(),
            ExpectedBody::Length(length) => vec![b'x'; *length],
        };
        let mut reply = format!("HTTP/1.1 {} OK\r\n", self.status).into_bytes();
        for (name, value) in &self.fields {
            reply.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        let trailers = self.trailers.iter();
        let trailers = trailers.map(|(name, value)| (name.as_str(), value.clone().into_bytes()));
        write_content(&mut reply, &body, trailers);
        reply
    }
}

/// What follows the head of a request or a reply.
pub(crate) fn body_of(message: &[u8]) -> &[u8] {
    let end = memchr::memmem::find(message, b"\r\n\r\n").expect("a head ends");
    &message[end + 4..]
}

/// Ends the head of a reply and appends its body: in one chunk if trailer fields follow.
pub(crate) fn write_content<'a>(
    reply: &mut Vec<u8>,
    body: &[u8],
    trailers: impl Iterator<Item = (&'a str, Vec<u8>)>,
) {
    let mut lines = Vec::new();
    for (name, value) in trailers {
        for part in [name.as_bytes(), b": ", &value, b"\r\n"] {
            lines.extend_from_slice(part);
        }
    }
    if lines.is_empty() {
        reply.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        reply.extend_from_slice(body);
        return;
    }
    let size = format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n", body.len());
    for part in [size.as_bytes(), body, b"\r\n0\r\n", &lines, b"\r\n"] {
        reply.extend_from_slice(part);
    }
}

fn fields(texts: &[(&str, &str)]) -> Vec<(String, String)> {
    texts.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

pub(crate) fn is_same_json(body: &[u8], expected: &[u8]) -> bool {
    if body == expected {
        return true;
    }
    let parse = serde_json::from_slice::<serde_json::Value>;
    match (parse(body), parse(expected)) {
        (Ok(body), Ok(expected)) => body == expected,
        _ => false,
    }
}

pub(crate) fn is_same_value(value: &[u8], expected: &[u8]) -> bool {
    match value.strip_prefix(expected) {
        Some(rest) => rest.is_empty() || rest.trim_ascii_start().starts_with(b";"),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::reply::{Parsed, parse};

    fn judge(answer: &Answer, reply: &[u8]) -> Result<(), Fault> {
        match parse(reply)? {
            Parsed::Whole(used, reply) if used > 0 => answer.check(&reply),
            other => panic!("not whole: {other:?}"),
        }
    }

    fn altered(answer: &Answer, from: &str, to: &str) -> Vec<u8> {
        let text = String::from_utf8(answer.example()).unwrap();
        assert!(text.contains(from), "{text} lacks {from}");
        text.replace(from, to).into_bytes()
    }

    #[test]
    fn every_named_workload_accepts_its_own_example() {
        for name in Workload::NAMES {
            let workload = Workload::named(name).expect("the name is listed");
            assert_eq!(workload.name, name);
            assert_eq!(judge(&workload.answer, &workload.answer.example()), Ok(()));
        }
        assert!(Workload::named("nothing").is_none());
    }

    #[test]
    fn each_difference_from_the_answer_has_its_name() {
        let answer = Workload::named("post-project-work").unwrap().answer;
        let judged = |from, to| judge(&answer, &altered(&answer, from, to));
        assert_eq!(judged("201", "200"), Err(Fault::WrongStatus));
        assert_eq!(judged("x-benchmark-after", "x-benchmark-other"), Err(Fault::WrongHeader));
        assert_eq!(judged(": done", ": doner"), Err(Fault::WrongHeader));
        assert_eq!(judged("acme", "acne"), Err(Fault::WrongBody));
        assert_eq!(judged(r#""quantity":7"#, r#""quantity":8"#), Err(Fault::WrongBody));
        assert_eq!(judged("application/json", "application/json; charset=utf-8"), Ok(()));
    }

    #[test]
    fn gzip_is_unpacked_where_the_request_takes_it_and_wrong_elsewhere() {
        use std::io::Write;
        let mut answer = Workload::named("get-json").unwrap().answer;
        let packed = |body: &[u8]| {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            packer.write_all(body).unwrap();
            packer.finish().unwrap()
        };
        let reply = |body: &[u8]| {
            let head =
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n";
            let head = format!("{head}Content-Length: {}\r\n\r\n", body.len());
            [head.as_bytes(), body].concat()
        };
        let right = packed(JSON_REPLY.as_bytes());
        assert_eq!(judge(&answer, &reply(&right)), Err(Fault::WrongBody));
        answer.takes_gzip = true;
        assert_eq!(judge(&answer, &reply(&right)), Ok(()));
        assert_eq!(judge(&answer, &answer.example()), Ok(()));
        for wrong in [&right[..right.len() - 9], &packed(b"{}"), JSON_REPLY.as_bytes(), b""] {
            assert_eq!(judge(&answer, &reply(wrong)), Err(Fault::WrongBody));
        }
        answer.body = ExpectedBody::Length(17 << 20);
        let bomb = packed(&vec![b' '; 17 << 20]);
        assert_eq!(judge(&answer, &reply(&bomb)), Err(Fault::WrongBody));
    }

    #[test]
    fn json_may_be_spelled_in_any_way_where_only_its_value_counts() {
        let expected = br#"{"a":1,"b":"x"}"#;
        assert!(is_same_json(br#"{ "b": "\u0078", "a": 1 }"#, expected));
        assert!(!is_same_json(br#"{"a":1}"#, expected));
        assert!(!is_same_json(b"", expected));
    }

    #[test]
    fn the_length_in_a_request_is_the_length_of_its_body() {
        let request = Workload::named("post-project-work").unwrap().request;
        let text = String::from_utf8(request).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())));
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }
}
