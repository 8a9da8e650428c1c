//! A request and the only right answer to it.

use peregrine_lab_load::question::{
    BodyWording, ExpectedContent, Question, Template, TemplateError, Values, Wording,
};
use peregrine_lab_load::workload::{Answer, Asked, ExpectedBody, Workload};

use crate::body::{
    BODY_BYTES_MAX, FORM_FILE_BYTES_MAX, FORM_TYPE, Fixtures, LINES_MAX, bytes_of_size, form,
    literal, numbered_lines, upload_answer,
};
use crate::error::{WorkloadError, Wrong};
use crate::keys::{ReplyKeys, RequestKeys};

/// How many different requests a paired run has, where values are random.
pub const VARIANTS: u64 = 1024;

/// The most fields of a request, Host included.
const FIELDS_MAX: usize = 1000;

/// A request and the only right answer to it.
#[derive(Debug, Clone)]
pub struct Exchange {
    /// What the exchange shows, for people: `asked` for what a scenario times, or the probe's name.
    pub name: String,
    /// The request and the answer as they are written. The host and the seed are placeholders for
    /// those given to [`Exchange::question`].
    pub wording: Wording,
}

impl Exchange {
    pub(crate) fn read(
        name: &str,
        request: RequestKeys,
        reply: ReplyKeys,
        fixtures: &mut Fixtures<'_>,
    ) -> Result<Exchange, Wrong> {
        let body = read_body(&request, fixtures).map_err(|wrong| wrong.within("request"))?;
        let mut fields: Vec<_> = request.fields.clone().into_iter().collect();
        if request.form_file_size.is_some() {
            fields.push(("Content-Type".to_owned(), FORM_TYPE.to_owned()));
        }
        let mut wording = Wording {
            method: request.method.clone().unwrap_or_else(|| "GET".to_owned()),
            target: request.target.clone(),
            fields,
            body,
            is_websocket: request.websocket,
            ..Wording::default()
        };
        check_request(&wording).map_err(|wrong| wrong.within("request"))?;
        if let Some(total) = request.fields_total {
            fill_fields(&mut wording, total).map_err(|wrong| wrong.within("request"))?;
        }
        check_placeholders(&wording).map_err(|wrong| wrong.within("request"))?;
        let uploaded = request.form_file_size.map(bytes_of_size);
        Exchange { name: name.to_owned(), wording }.with_reply(reply, uploaded, fixtures)
    }

    fn with_reply(
        mut self,
        reply: ReplyKeys,
        uploaded: Option<Vec<u8>>,
        fixtures: &mut Fixtures<'_>,
    ) -> Result<Exchange, Wrong> {
        let wording = &mut self.wording;
        if wording.is_websocket {
            check_message(&reply)?;
        }
        let status = reply.status.unwrap_or(200);
        if !(200..=599).contains(&status) {
            let fix = "a final status is from 200 to 599";
            return Err(Wrong::new("reply.status", format!("{status} ends no exchange"), fix));
        }
        wording.expected_status = Some(status);
        check_fields("fields", reply.fields.iter()).map_err(|wrong| wrong.within("reply"))?;
        wording.expected_fields =
            reply.fields.iter().map(|(name, value)| (name.clone(), Some(value.clone()))).collect();
        check_fields("trailers", reply.trailers.iter()).map_err(|wrong| wrong.within("reply"))?;
        wording.expected_trailers = reply.trailers.clone().into_iter().collect();
        let sent = uploaded.map(|file| literal(&file)).or_else(|| wording.body.clone());
        wording.expected_body = expected_body(reply, sent.as_deref(), fixtures)
            .map_err(|wrong| wrong.within("reply"))?;
        let question = self.question("localhost", 1).map_err(|error| template("reply", &error))?;
        if let ExpectedContent::Json(text) = &question.expected.body {
            let mut out = Vec::new();
            text.render(question.values(), 0, &mut out);
            serde_json::from_slice::<serde::de::IgnoredAny>(&out).map_err(|error| {
                Wrong::new("reply.json", format!("it is no JSON: {error}"), "write one JSON value")
            })?;
        }
        Ok(self)
    }

    /// The question, for a server that is called `host` in the Host field, with random values
    /// that `seed` decides.
    ///
    /// # Errors
    ///
    /// A placeholder that cannot be read. The exchanges of a scenario file have none, unless
    /// `host` has.
    pub fn question(&self, host: &str, seed: u64) -> Result<Question, TemplateError> {
        Question::new(&Wording { host: host.to_owned(), seed, ..self.wording.clone() })
    }

    /// Whether the body of the answer is left open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.wording.expected_body, BodyWording::Any)
    }

    /// The same exchange for paired time slices. Where values are random, [`VARIANTS`] requests
    /// with their answers are made ahead and asked in turn; each connection begins at another one.
    ///
    /// # Errors
    ///
    /// [`WorkloadError::Template`] as for [`Exchange::question`], or
    /// [`WorkloadError::OpenAnswer`] if any status or any body would be right.
    pub fn workload(
        &self,
        name: &str,
        pipeline: usize,
        is_tls: bool,
    ) -> Result<Workload, WorkloadError> {
        let wording = &self.wording;
        let question =
            self.question(&wording.host, wording.seed).map_err(WorkloadError::Template)?;
        let count = if question.is_constant() { 1 } else { VARIANTS };
        let mut asked = (0..count).map(|number| variant(&question, number));
        let Asked { request, answer } = asked.next().expect("there is at least one")?;
        Ok(Workload {
            name: name.to_owned(),
            request,
            depth: pipeline,
            is_http2: false,
            is_websocket: wording.is_websocket,
            is_tls,
            answer,
            others: asked.collect::<Result<_, _>>()?,
        })
    }
}

/// The request of this number and its answer, as bytes.
fn variant(question: &Question, number: u64) -> Result<Asked, WorkloadError> {
    let mut request = Vec::new();
    question.render(number, false, &mut Vec::new(), &mut request);
    let rendered = |text: &Template| {
        let mut out = Vec::new();
        text.render(question.values(), number, &mut out);
        out
    };
    let expected = &question.expected;
    let body = match &expected.body {
        ExpectedContent::Exact(text) => ExpectedBody::Exact(rendered(text)),
        ExpectedContent::Json(text) => ExpectedBody::Json(rendered(text)),
        ExpectedContent::Length(length) => ExpectedBody::Length(*length),
        ExpectedContent::Any | ExpectedContent::Sha256(_) => return Err(WorkloadError::OpenAnswer),
    };
    let fields = expected.fields.iter().filter_map(|(name, value)| {
        let value = value.as_ref()?;
        Some((name.clone(), String::from_utf8_lossy(&rendered(value)).into_owned()))
    });
    let trailers = expected.trailers.iter().map(|(name, value)| {
        (name.clone(), String::from_utf8_lossy(&rendered(value)).into_owned())
    });
    let status = expected.status.ok_or(WorkloadError::OpenAnswer)?;
    let (fields, trailers) = (fields.collect(), trailers.collect());
    let takes_gzip = expected.takes_gzip;
    Ok(Asked { request, answer: Answer { status, fields, body, trailers, takes_gzip } })
}

/// Every text by itself, so that the key of the wrong one can be named: in the head of a request
/// a placeholder without an end would swallow what follows.
fn check_placeholders(wording: &Wording) -> Result<(), Wrong> {
    let mut values = Values::new(1);
    let mut check = |key: String, text: &[u8]| match Template::parse(text, &mut values) {
        Ok(_) => Ok(()),
        Err(error) => Err(template(&key, &error)),
    };
    check("method".to_owned(), wording.method.as_bytes())?;
    check("target".to_owned(), wording.target.as_bytes())?;
    for (name, value) in &wording.fields {
        check(format!("fields.{name}"), value.as_bytes())?;
    }
    check("body".to_owned(), wording.body.as_deref().unwrap_or_default())
}

fn template(table: &str, error: &TemplateError) -> Wrong {
    let fix = "write a placeholder as {counter}, {random:1..9}, {choice:a|b} or {name=..}, and \
               double the brace if it is none";
    Wrong::new(table, error.to_string(), fix)
}

fn read_body(request: &RequestKeys, fixtures: &mut Fixtures<'_>) -> Result<Option<Vec<u8>>, Wrong> {
    let is_within = |key: &str, size: usize, most: usize| {
        let fix = format!("at most {most} are allowed");
        let wrong = || Wrong::new(key, format!("{size} bytes are too many"), fix);
        if size > most { Err(wrong()) } else { Ok(size) }
    };
    match (&request.body, &request.body_file, request.body_size, request.form_file_size) {
        (None, None, None, None) => Ok(None),
        (Some(text), None, None, None) => Ok(Some(text.clone().into_bytes())),
        (None, Some(file), None, None) => Ok(Some(literal(&fixtures.read("body_file", file)?))),
        (None, None, Some(size), None) => {
            let size = is_within("body_size", size, BODY_BYTES_MAX)?;
            Ok(Some(literal(&bytes_of_size(size))))
        }
        (None, None, None, Some(size)) => {
            let size = is_within("form_file_size", size, FORM_FILE_BYTES_MAX)?;
            Ok(Some(literal(&form(&bytes_of_size(size)))))
        }
        _ => {
            let fix = "keep one of body, body_file, body_size and form_file_size";
            Err(Wrong::new("body", "a request has one body", fix))
        }
    }
}

fn expected_body(
    reply: ReplyKeys,
    sent: Option<&[u8]>,
    fixtures: &mut Fixtures<'_>,
) -> Result<BodyWording, Wrong> {
    let ReplyKeys { text, lines, json, json_file, length, upload, .. } = reply;
    let is_upload = upload == Some(true);
    let (is_json, is_sized) = (json.is_some(), length.is_some());
    let rules =
        [text.is_some(), lines.is_some(), is_json, json_file.is_some(), is_sized, is_upload];
    if rules.iter().filter(|&&is_given| is_given).count() > 1 {
        let fix = "keep one of text, lines, json, json_file, length and upload";
        return Err(Wrong::new("text", "a reply has one body", fix));
    }
    if let Some(count) = lines {
        if count > LINES_MAX {
            let fix = format!("at most {LINES_MAX} are allowed");
            return Err(Wrong::new("lines", format!("{count} lines are too many"), fix));
        }
        return Ok(BodyWording::Exact(numbered_lines(count)));
    }
    if let Some(text) = text {
        return Ok(BodyWording::Exact(text));
    }
    if let Some(json) = json {
        return Ok(BodyWording::Json(json));
    }
    if let Some(file) = json_file {
        let bytes = literal(&fixtures.read("json_file", &file)?);
        let text = String::from_utf8(bytes).map_err(|_| {
            Wrong::new("json_file", format!("{} is not UTF-8", file.display()), "JSON is UTF-8")
        })?;
        return Ok(BodyWording::Json(text));
    }
    if let Some(length) = length {
        if length > BODY_BYTES_MAX {
            let fix = format!("at most {BODY_BYTES_MAX} are allowed");
            return Err(Wrong::new("length", format!("{length} bytes are too many"), fix));
        }
        return Ok(BodyWording::Length(length));
    }
    if !is_upload {
        return Ok(BodyWording::Any);
    }
    let constant = sent.and_then(|sent| {
        let template = Template::parse(sent, &mut Values::new(1)).ok()?;
        template.constant().map(upload_answer)
    });
    constant.map(BodyWording::Json).ok_or_else(|| {
        let fix = "give the request a body without placeholders";
        Wrong::new("upload", "the answer to an upload is computed from a fixed body", fix)
    })
}

/// What a message of a WebSocket can be.
fn check_message(reply: &ReplyKeys) -> Result<(), Wrong> {
    let has_head = reply.status.is_some() || !reply.fields.is_empty() || !reply.trailers.is_empty();
    if has_head || reply.text.is_none() {
        let fix = "give text alone";
        return Err(Wrong::new("reply", "the answer to a message is a text message", fix));
    }
    Ok(())
}

fn check_request(wording: &Wording) -> Result<(), Wrong> {
    if wording.is_websocket && (wording.method != "GET" || wording.body.is_none()) {
        let fix = "leave the method out, and give the message as body";
        return Err(Wrong::new("websocket", "a WebSocket is opened by GET, for messages", fix));
    }
    let is_method = |byte: u8| byte.is_ascii_alphanumeric() || b"-_{}=:|".contains(&byte);
    if wording.method.is_empty() || !wording.method.bytes().all(is_method) {
        let cause = format!("{:?} is no method", wording.method);
        return Err(Wrong::new("method", cause, "write one such as GET"));
    }
    let has_slash = wording.target.starts_with('/');
    if !has_slash || !wording.target.bytes().all(|byte| byte.is_ascii_graphic()) {
        let cause = format!("{:?} is no path", wording.target);
        return Err(Wrong::new("target", cause, "begin with / and encode spaces as %20"));
    }
    let owned = ["host", "content-length", "transfer-encoding", "connection", "upgrade"];
    let is_owned = |name: &str| owned.iter().any(|other| name.eq_ignore_ascii_case(other));
    if let Some((name, _)) = wording.fields.iter().find(|(name, _)| is_owned(name)) {
        let fix = "remove it: the client writes this field";
        return Err(Wrong::new(format!("fields.{name}"), "it is not the scenario's to set", fix));
    }
    check_fields("fields", wording.fields.iter().map(|(name, value)| (name, value)))
}

fn check_fields<'a>(
    table: &str,
    mut fields: impl Iterator<Item = (&'a String, &'a String)>,
) -> Result<(), Wrong> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(is_token);
    let is_value = |value: &str| value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    match fields.find(|(name, value)| !is_name(name) || !is_value(value)) {
        None => Ok(()),
        Some((name, _)) => Err(Wrong::new(
            format!("{table}.{name}"),
            "it is no field of HTTP",
            "use letters, digits and - in names, and visible ASCII in values",
        )),
    }
}

/// Adds fields until the request has `total`, Host and Content-Length included.
fn fill_fields(wording: &mut Wording, total: usize) -> Result<(), Wrong> {
    let own = 1 + wording.fields.len() + usize::from(wording.body.is_some());
    if !(own..=FIELDS_MAX).contains(&total) {
        let cause = format!("the request has {own} fields already, and {total} are asked for");
        let fix = format!("give a number from {own} to {FIELDS_MAX}");
        return Err(Wrong::new("fields_total", cause, fix));
    }
    for number in 1..=total - own {
        wording.fields.push((format!("X-Lab-Field-{number:03}"), format!("value-{number:03}")));
    }
    Ok(())
}
