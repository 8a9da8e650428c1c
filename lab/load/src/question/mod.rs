//! What is asked: one kind of request, with values that differ, and the only right answer.

mod expected;
mod template;

pub use expected::{Expected, ExpectedContent};
pub(crate) use template::write_decimal;
pub use template::{Template, TemplateError, VALUES_MAX, Values};

use crate::workload::{ExpectedBody, Workload};

/// A question as a user writes it. Every text may hold placeholders, as described at
/// [`Template`]; a method with placeholders must not become `HEAD`.
#[derive(Debug, Clone)]
pub struct Wording {
    /// The method; the default is `GET`.
    pub method: String,
    /// Path and query; the default is `/`.
    pub target: String,
    /// The value of the Host field; the default is `localhost`.
    pub host: String,
    /// More fields, in order. A Host field here replaces the other one.
    pub fields: Vec<(String, String)>,
    /// The body. Its length is added as a field.
    pub body: Option<Vec<u8>>,
    /// The status code; none: any from 200 to 299.
    pub expected_status: Option<u16>,
    /// The body of the right answer.
    pub expected_body: BodyWording,
    /// Fields of the right answer; their values only where one is given.
    pub expected_fields: Vec<(String, Option<String>)>,
    /// Trailer fields of the right answer.
    pub expected_trailers: Vec<(String, String)>,
    /// Whether the body is a text message of a WebSocket, which the rest of the request opens, and the
    /// answer a message as well. The method is `GET` then.
    pub is_websocket: bool,
    /// Decides every random value.
    pub seed: u64,
}

/// The body of the right answer as a user writes it.
#[derive(Debug, Clone, Default)]
pub enum BodyWording {
    /// Any bytes.
    #[default]
    Any,
    /// Any bytes of this length.
    Length(usize),
    /// This text.
    Exact(String),
    /// This JSON value.
    Json(String),
    /// Bytes with this SHA-256.
    Sha256([u8; 32]),
}

impl Default for Wording {
    fn default() -> Wording {
        Wording {
            method: "GET".to_owned(),
            target: "/".to_owned(),
            host: "localhost".to_owned(),
            fields: Vec::new(),
            body: None,
            expected_status: None,
            expected_body: BodyWording::Any,
            expected_fields: Vec::new(),
            expected_trailers: Vec::new(),
            is_websocket: false,
            seed: 1,
        }
    }
}

/// A question ready to be asked many times.
#[derive(Debug, Clone)]
pub struct Question {
    values: Values,
    head: Template,
    body: Template,
    /// Whether the length of the body has to be written for each request.
    has_length: bool,
    /// Whether replies have no body, because the method is HEAD.
    pub is_head: bool,
    /// Whether the body is a message of a WebSocket, and the answer as well.
    pub is_websocket: bool,
    /// The only right answer.
    pub expected: Expected,
    /// Whether every request is rendered as the one of number 0.
    is_frozen: bool,
}

impl Question {
    /// Reads a wording.
    ///
    /// # Errors
    ///
    /// The first placeholder that cannot be read, and why.
    pub fn new(wording: &Wording) -> Result<Question, TemplateError> {
        let mut values = Values::new(wording.seed);
        let mut head = format!("{} {} HTTP/1.1\r\n", wording.method, wording.target);
        let is_host = |name: &str| name.eq_ignore_ascii_case("host");
        if !wording.fields.iter().any(|(name, _)| is_host(name)) {
            head += &format!("Host: {}\r\n", wording.host);
        }
        for (name, value) in &wording.fields {
            head += &format!("{name}: {value}\r\n");
        }
        let mut head = Template::parse(head.as_bytes(), &mut values)?;
        let body = wording.body.as_deref().unwrap_or_default();
        let body = Template::parse(body, &mut values)?;
        let has_body = wording.body.is_some();
        if let (true, Some(bytes)) = (has_body, body.constant()) {
            head.append(Template::fixed(format!("Content-Length: {}\r\n", bytes.len()).as_bytes()));
        }
        let has_length = has_body && body.constant().is_none();
        let expected_body = match &wording.expected_body {
            BodyWording::Any => ExpectedContent::Any,
            BodyWording::Length(length) => ExpectedContent::Length(*length),
            BodyWording::Exact(text) => {
                ExpectedContent::Exact(Template::parse(text.as_bytes(), &mut values)?)
            }
            BodyWording::Json(text) => {
                ExpectedContent::Json(Template::parse(text.as_bytes(), &mut values)?)
            }
            BodyWording::Sha256(hash) => ExpectedContent::Sha256(*hash),
        };
        let mut fields = Vec::with_capacity(wording.expected_fields.len());
        for (name, value) in &wording.expected_fields {
            let value = match value {
                Some(value) => Some(Template::parse(value.as_bytes(), &mut values)?),
                None => None,
            };
            fields.push((name.clone(), value));
        }
        let mut trailers = Vec::with_capacity(wording.expected_trailers.len());
        for (name, value) in &wording.expected_trailers {
            trailers.push((name.clone(), Template::parse(value.as_bytes(), &mut values)?));
        }
        let status = wording.expected_status;
        // RFC 9110 §12.5.3: a coding that is named without a weight of zero may come.
        let takes_gzip = wording.fields.iter().any(|(name, value)| {
            name.eq_ignore_ascii_case("accept-encoding") && value.contains("gzip")
        });
        Ok(Question {
            values,
            head,
            body,
            has_length,
            is_head: wording.method == "HEAD",
            is_websocket: wording.is_websocket,
            expected: Expected { status, body: expected_body, fields, trailers, takes_gzip },
            is_frozen: false,
        })
    }

    /// The question of a workload; of several requests it is the first.
    #[must_use]
    pub fn of(workload: &Workload) -> Question {
        let head_bytes = memchr::memmem::find(&workload.request, b"\r\n\r\n")
            .expect("a workload's request has a head")
            + 2;
        let body = match &workload.answer.body {
            ExpectedBody::Exact(body) => ExpectedContent::Exact(Template::fixed(body)),
            ExpectedBody::Json(body) => ExpectedContent::Json(Template::fixed(body)),
            ExpectedBody::Length(length) => ExpectedContent::Length(*length),
        };
        let fields = workload
            .answer
            .fields
            .iter()
            .map(|(name, value)| (name.clone(), Some(Template::fixed(value.as_bytes()))));
        let trailers = workload
            .answer
            .trailers
            .iter()
            .map(|(name, value)| (name.clone(), Template::fixed(value.as_bytes())));
        Question {
            values: Values::new(0),
            head: Template::fixed(&workload.request[..head_bytes]),
            body: Template::fixed(&workload.request[head_bytes + 2..]),
            has_length: false,
            is_head: workload.request.starts_with(b"HEAD "),
            is_websocket: workload.is_websocket,
            expected: Expected {
                status: Some(workload.answer.status),
                body,
                fields: fields.collect(),
                trailers: trailers.collect(),
                takes_gzip: workload.answer.takes_gzip,
            },
            is_frozen: false,
        }
    }

    /// The same question with the same cost of asking it, but always with the values of the first
    /// request, so that a server that answers fixed bytes answers rightly.
    #[must_use]
    pub fn frozen(&self) -> Question {
        Question { is_frozen: true, ..self.clone() }
    }

    /// Whether all requests and the answers to them are alike.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.values.is_empty()
    }

    /// Appends the request of this number. `is_last` asks the server to close afterwards;
    /// `scratch` is room to render in.
    pub fn render(&self, number: u64, is_last: bool, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
        let number = self.number(number);
        self.head.render(&self.values, number, out);
        if is_last {
            out.extend_from_slice(b"Connection: close\r\n");
        }
        if !self.has_length {
            out.extend_from_slice(b"\r\n");
            self.body.render(&self.values, number, out);
            return;
        }
        scratch.clear();
        self.body.render(&self.values, number, scratch);
        out.extend_from_slice(b"Content-Length: ");
        write_decimal(scratch.len() as u64, out);
        out.extend_from_slice(b"\r\n\r\n");
        out.extend_from_slice(scratch);
    }

    /// Appends the body alone of the request of this number: the message, for a WebSocket.
    pub fn render_body(&self, number: u64, out: &mut Vec<u8>) {
        self.body.render(&self.values, self.number(number), out);
    }

    /// The values that requests and answers are made of.
    #[must_use]
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// The number that decides the values of a request: its own, unless the question is frozen.
    #[must_use]
    pub fn number(&self, number: u64) -> u64 {
        if self.is_frozen { 0 } else { number }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fault::Fault;
    use crate::client::reply::{Parsed, parse};

    fn echo() -> Question {
        let wording = Wording {
            method: "POST".into(),
            target: "/items/{counter}?n={random:1..1000}".into(),
            fields: vec![("X-Request-ID".into(), "r{counter}".into())],
            body: Some(br#"{"kind":"{choice:small|large}"}"#.to_vec()),
            expected_status: Some(201),
            expected_body: BodyWording::Json(
                r#"{"id":{counter},"n":{random:1..1000},"kind":"{choice:small|large}"}"#.into(),
            ),
            expected_fields: vec![("x-request-id".into(), Some("r{counter}".into()))],
            ..Wording::default()
        };
        Question::new(&wording).unwrap()
    }

    fn judge(question: &Question, reply: &[u8], number: u64) -> Result<(), Fault> {
        match parse(reply)? {
            Parsed::Whole(_, reply) => {
                question.expected.check(&reply, question.values(), number, &mut Vec::new())
            }
            other => panic!("not whole: {other:?}"),
        }
    }

    #[test]
    fn the_length_of_a_varied_body_is_its_own() {
        let question = echo();
        let mut lengths = std::collections::BTreeSet::new();
        for number in 0..20 {
            let mut out = Vec::new();
            question.render(number, false, &mut Vec::new(), &mut out);
            let text = String::from_utf8(out).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("POST /items/{number}?n=")), "{head}");
            assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{text}");
            lengths.insert(body.len());
        }
        // Both words were chosen: small and large have the same length, the braces do not vary.
        assert_eq!(lengths.len(), 1);
    }

    #[test]
    fn the_answer_to_one_request_is_wrong_for_another() {
        let question = echo();
        let reply = question.expected.example(question.values(), 7, false).unwrap();
        assert_eq!(judge(&question, &reply, 7), Ok(()));
        assert!(judge(&question, &reply, 8).is_err());
        let spelled = String::from_utf8(reply).unwrap().replace(r#"{"id":7,"#, "{ \"id\":\n7,");
        let (_, body) = spelled.split_once("\r\n\r\n").unwrap();
        let reply = format!(
            "HTTP/1.1 201 OK\r\nX-Request-Id: r7\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        assert_eq!(judge(&question, reply.as_bytes(), 7), Ok(()));
        let other = reply.replace("Id: r7", "Id: r8");
        assert_eq!(judge(&question, other.as_bytes(), 7), Err(Fault::WrongHeader));
    }

    #[test]
    fn each_rule_for_a_body_names_its_own_fault() {
        let judged = |rule, body: &str| {
            let wording = Wording { expected_body: rule, ..Wording::default() };
            let question = Question::new(&wording).unwrap();
            let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            judge(&question, reply.as_bytes(), 0)
        };
        assert_eq!(judged(BodyWording::Any, "anything"), Ok(()));
        assert_eq!(judged(BodyWording::Length(3), "abc"), Ok(()));
        assert_eq!(judged(BodyWording::Length(3), "ab"), Err(Fault::WrongLength));
        assert_eq!(judged(BodyWording::Exact("abc".into()), "abd"), Err(Fault::WrongBody));
        assert_eq!(judged(BodyWording::Exact("abc".into()), "ab"), Err(Fault::WrongLength));
        let hash: [u8; 32] = sha2::Digest::finalize(sha2::Digest::chain_update(
            <sha2::Sha256 as sha2::Digest>::new(),
            b"abc",
        ))
        .into();
        assert_eq!(judged(BodyWording::Sha256(hash), "abc"), Ok(()));
        assert_eq!(judged(BodyWording::Sha256(hash), "abd"), Err(Fault::WrongBody));
        assert_eq!(judged(BodyWording::Json("[1, 2]".into()), "[1,2]"), Ok(()));
        assert_eq!(judged(BodyWording::Json("[1, 2]".into()), "[2,1]"), Err(Fault::WrongBody));
    }

    #[test]
    fn a_frozen_question_is_always_the_first() {
        let (question, mut first, mut other) = (echo().frozen(), Vec::new(), Vec::new());
        question.render(0, false, &mut Vec::new(), &mut first);
        question.render(9, false, &mut Vec::new(), &mut other);
        assert_eq!(first, other);
    }

    #[test]
    fn a_named_workload_is_asked_byte_for_byte() {
        for name in Workload::NAMES {
            let workload = Workload::named(name).unwrap();
            let (question, mut out) = (Question::of(&workload), Vec::new());
            question.render(3, false, &mut Vec::new(), &mut out);
            assert_eq!(out, workload.request);
            assert_eq!(judge(&question, &workload.answer.example(), 3), Ok(()));
        }
    }
}
