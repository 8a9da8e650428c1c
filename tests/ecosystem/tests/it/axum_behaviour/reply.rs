//! Requests as they are written, and responses as they are read, without a library in between.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;

/// A request.
#[derive(Clone)]
pub(crate) struct Ask {
    method: String,
    head: String,
    body: Vec<u8>,
    is_chunked: bool,
    has_length: bool,
}

impl Ask {
    pub(crate) fn new(method: &str, target: &str) -> Self {
        let head = format!("{method} {target} HTTP/1.1\r\nhost: a.example\r\n");
        let method = method.to_owned();
        Self { method, head, body: Vec::new(), is_chunked: false, has_length: false }
    }

    pub(crate) fn field(mut self, name: &str, value: &str) -> Self {
        self.head += &format!("{name}: {value}\r\n");
        self
    }

    pub(crate) fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = body.as_ref().to_vec();
        self.has_length = true;
        self
    }

    /// A chunked body, in pieces of `size` bytes.
    pub(crate) fn chunked(mut self, body: impl AsRef<[u8]>, size: usize) -> Self {
        for piece in body.as_ref().chunks(size) {
            self.body.extend(format!("{:x}\r\n", piece.len()).into_bytes());
            self.body.extend(piece);
            self.body.extend(b"\r\n");
        }
        self.body.extend(b"0\r\n\r\n");
        self.is_chunked = true;
        self
    }

    pub(crate) fn is_head(&self) -> bool {
        self.method == "HEAD"
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head.clone().into_bytes();
        if self.is_chunked {
            bytes.extend(b"transfer-encoding: chunked\r\n");
        } else if self.has_length {
            bytes.extend(format!("content-length: {}\r\n", self.body.len()).into_bytes());
        }
        bytes.extend(b"\r\n");
        bytes.extend(&self.body);
        bytes
    }
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.head.lines().next().unwrap_or_default();
        f.write_str(line.trim_end_matches(" HTTP/1.1"))
    }
}

/// A complete response, in a form that can be compared.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    /// The status lines of interim responses.
    interim: Vec<String>,
    status_line: String,
    /// Sorted by name, in lower case.
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    trailers: Vec<(String, String)>,
}

type Fields = Vec<(String, String)>;

impl Reply {
    pub(crate) fn read(stream: &mut TcpStream, is_to_head: bool) -> Result<Self, String> {
        let mut reader = BufReader::new(stream);
        Self::take(&mut reader, is_to_head)
    }

    /// The next response on a connection.
    pub(crate) fn take(reader: &mut impl BufRead, is_to_head: bool) -> Result<Self, String> {
        let mut interim = Vec::new();
        loop {
            let status_line = line(reader)?;
            let fields = fields(reader)?;
            let mut reply =
                Self { interim, status_line, fields, body: Vec::new(), trailers: Vec::new() };
            let status = reply.status();
            if (100..200).contains(&status) && status != 101 {
                reply.interim.push(reply.status_line);
                interim = reply.interim;
                continue;
            }
            let has_body = !is_to_head && status >= 200 && status != 204 && status != 304;
            if has_body {
                reply.take_body(reader)?;
            }
            reply.fields.retain(|(name, _)| name != "connection");
            for (name, value) in &mut reply.fields {
                if name == "date" {
                    "(a date)".clone_into(value);
                }
            }
            reply.fields.sort();
            return Ok(reply);
        }
    }

    fn take_body(&mut self, reader: &mut impl BufRead) -> Result<(), String> {
        if self.field("transfer-encoding") == Some("chunked") {
            loop {
                let size = line(reader)?;
                let size = usize::from_str_radix(&size, 16).map_err(|error| error.to_string())?;
                if size == 0 {
                    self.trailers = fields(reader)?;
                    self.trailers.sort();
                    return Ok(());
                }
                let start = self.body.len();
                self.body.resize(start + size, 0);
                reader.read_exact(&mut self.body[start..]).map_err(|error| error.to_string())?;
                line(reader)?;
            }
        }
        match self.field("content-length").map(str::parse) {
            Some(length) => {
                self.body.resize(length.map_err(|_| "a length that is not a number")?, 0);
                reader.read_exact(&mut self.body)
            }
            None => reader.read_to_end(&mut self.body).map(drop),
        }
        .map_err(|error| error.to_string())
    }

    pub(crate) fn status(&self) -> u16 {
        self.status_line.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Asserts status and body.
    #[track_caller]
    pub(crate) fn is(&self, status: u16, body: &str) -> &Self {
        assert_eq!((self.status(), self.text().as_str()), (status, body), "{self:?}");
        self
    }

    /// Asserts the status, and a part of the body.
    #[track_caller]
    pub(crate) fn says(&self, status: u16, part: &str) -> &Self {
        assert_eq!(self.status(), status, "{self:?}");
        assert!(self.text().contains(part), "{self:?}");
        self
    }

    /// Asserts a field's first value.
    #[track_caller]
    pub(crate) fn has(&self, name: &str, value: &str) -> &Self {
        assert_eq!(self.field(name), Some(value), "{self:?}");
        self
    }

    /// Asserts that a field is absent.
    #[track_caller]
    pub(crate) fn lacks(&self, name: &str) -> &Self {
        assert_eq!(self.field(name), None, "{self:?}");
        self
    }

    /// Asserts a trailer's value.
    #[track_caller]
    pub(crate) fn ends_with(&self, name: &str, value: &str) -> &Self {
        assert_eq!(self.trailers, [(name.to_owned(), value.to_owned())], "{self:?}");
        self
    }

    /// Asserts the statuses of interim responses.
    #[track_caller]
    pub(crate) fn after(&self, interim: &[&str]) -> &Self {
        assert_eq!(self.interim, interim, "{self:?}");
        self
    }

    /// The differences between `ours` and this response.
    pub(crate) fn differences(&self, ours: &Self) -> Vec<String> {
        let mut all = Vec::new();
        let mut compare = |what: &str, reference: String, ours: String| {
            if reference != ours {
                all.push(format!("{what} {reference} is {ours} here"));
            }
        };
        compare("interim", format!("{:?}", self.interim), format!("{:?}", ours.interim));
        compare("status", self.status().to_string(), ours.status().to_string());
        compare("body", format!("{:?}", self.text()), format!("{:?}", ours.text()));
        compare("trailers", format!("{:?}", self.trailers), format!("{:?}", ours.trailers));
        let names = self.fields.iter().chain(&ours.fields).map(|(name, _)| name);
        for name in names.collect::<BTreeSet<_>>() {
            let values = |reply: &Self| {
                let fields = reply.fields.iter().filter(|(other, _)| other == name);
                let values: Vec<_> = fields.map(|(_, value)| value.as_str()).collect();
                if values.is_empty() { "(none)".to_owned() } else { values.join(" | ") }
            };
            compare(name, values(self), values(ours));
        }
        all
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?} {}", self.interim, self.status_line)?;
        for (name, value) in &self.fields {
            writeln!(f, "{name}: {value}")?;
        }
        write!(f, "{:?} {:?}", self.text(), self.trailers)
    }
}

fn line(reader: &mut impl BufRead) -> Result<String, String> {
    let mut line = String::new();
    reader.read_line(&mut line).map_err(|error| error.to_string())?;
    line.strip_suffix("\r\n").map(str::to_owned).ok_or(format!("{line:?} is not a line"))
}

fn fields(reader: &mut impl BufRead) -> Result<Fields, String> {
    let mut fields = Vec::new();
    loop {
        let line = line(reader)?;
        if line.is_empty() {
            return Ok(fields);
        }
        let (name, value) = line.split_once(':').ok_or(format!("{line:?} is not a field"))?;
        fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}
