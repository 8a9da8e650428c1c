//! Which reply is the right one to the request of a given number.

use sha2::{Digest, Sha256};

use super::template::{Template, Values};
use crate::client::fault::Fault;
use crate::client::reply::Reply;
use crate::workload::{is_same_json, is_same_value, write_content};

/// The only right answer to a question.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// The status code; none: any from 200 to 299.
    pub status: Option<u16>,
    /// The body.
    pub body: ExpectedContent,
    /// Fields that must be there, by name; their values only where one is given. A media type may
    /// carry parameters.
    pub fields: Vec<(String, Option<Template>)>,
    /// Trailer fields that must be there with these values.
    pub trailers: Vec<(String, Template)>,
    /// Whether the body may come in gzip, because the request says so.
    pub takes_gzip: bool,
}

/// Which bodies are right.
#[derive(Debug, Clone, Default)]
pub enum ExpectedContent {
    /// Any bytes.
    #[default]
    Any,
    /// Any bytes of this length.
    Length(usize),
    /// These bytes and no others.
    Exact(Template),
    /// The same JSON value, spelled in any way and with its keys in any order.
    Json(Template),
    /// Bytes with this SHA-256.
    Sha256([u8; 32]),
}

impl Expected {
    /// Whether the same reply is right for every request.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        let is_fixed = |template: &Template| template.constant().is_some();
        let has_fixed_body = match &self.body {
            ExpectedContent::Exact(body) | ExpectedContent::Json(body) => is_fixed(body),
            _ => true,
        };
        let has_fixed_fields = self.fields.iter().all(|(_, value)| value.iter().all(is_fixed));
        let has_fixed_trailers = self.trailers.iter().all(|(_, value)| is_fixed(value));
        has_fixed_body && has_fixed_fields && has_fixed_trailers
    }

    /// Whether the reply is right for the request of this number: the status is judged first,
    /// then the body, then the fields, then the trailer fields. `scratch` is room to render in.
    ///
    /// # Errors
    ///
    /// [`Fault::WrongStatus`], [`Fault::WrongLength`], [`Fault::WrongBody`],
    /// [`Fault::WrongHeader`] or [`Fault::WrongTrailer`].
    pub fn check(
        &self,
        reply: &Reply<'_>,
        values: &Values,
        number: u64,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let is_right = match self.status {
            Some(status) => reply.status == status,
            None => (200..300).contains(&reply.status),
        };
        if !is_right {
            return Err(Fault::WrongStatus);
        }
        if self.takes_gzip && reply.is_gzip() {
            self.check_body(&reply.gunzip()?, values, number, scratch)?;
        } else {
            self.check_body(&reply.body, values, number, scratch)?;
        }
        for (name, expected) in &self.fields {
            let Some(value) = reply.field(name) else { return Err(Fault::WrongHeader) };
            let Some(expected) = expected else { continue };
            scratch.clear();
            expected.render(values, number, scratch);
            if !is_same_value(value, scratch) {
                return Err(Fault::WrongHeader);
            }
        }
        for (name, expected) in &self.trailers {
            scratch.clear();
            expected.render(values, number, scratch);
            if reply.trailer(name) != Some(scratch.as_slice()) {
                return Err(Fault::WrongTrailer);
            }
        }
        Ok(())
    }

    fn check_body(
        &self,
        body: &[u8],
        values: &Values,
        number: u64,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        scratch.clear();
        let is_right = match &self.body {
            ExpectedContent::Any => true,
            ExpectedContent::Length(length) if body.len() != *length => {
                return Err(Fault::WrongLength);
            }
            ExpectedContent::Length(_) => true,
            ExpectedContent::Exact(expected) => {
                // What is the same for all requests need not be copied, be it ever so long.
                let expected = match expected.constant() {
                    Some(expected) => expected,
                    None => {
                        expected.render(values, number, scratch);
                        scratch
                    }
                };
                if body.len() != expected.len() {
                    return Err(Fault::WrongLength);
                }
                body == expected
            }
            ExpectedContent::Json(expected) => {
                expected.render(values, number, scratch);
                is_same_json(body, scratch)
            }
            ExpectedContent::Sha256(expected) => Sha256::digest(body)[..] == expected[..],
        };
        if is_right { Ok(()) } else { Err(Fault::WrongBody) }
    }

    /// The bytes of a right reply to the request of this number, as the null server sends it;
    /// none if only its hash is known.
    #[must_use]
    pub fn example(&self, values: &Values, number: u64, is_head: bool) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        match &self.body {
            ExpectedContent::Any => {}
            ExpectedContent::Length(length) => body.resize(*length, b'x'),
            ExpectedContent::Exact(text) | ExpectedContent::Json(text) => {
                text.render(values, number, &mut body);
            }
            ExpectedContent::Sha256(_) => return None,
        }
        let mut reply = format!("HTTP/1.1 {} OK\r\n", self.status.unwrap_or(200)).into_bytes();
        for (name, value) in &self.fields {
            reply.extend_from_slice(name.as_bytes());
            reply.extend_from_slice(b": ");
            match value {
                Some(value) => value.render(values, number, &mut reply),
                None => reply.extend_from_slice(b"x"),
            }
            reply.extend_from_slice(b"\r\n");
        }
        let trailers = self.trailers.iter().map(|(name, value)| {
            let mut line = Vec::new();
            value.render(values, number, &mut line);
            (name.as_str(), line)
        });
        match (self.status, is_head) {
            (Some(204 | 304), _) => reply.extend_from_slice(b"\r\n"),
            (_, true) => {
                let length = format!("content-length: {}\r\n\r\n", body.len());
                reply.extend_from_slice(length.as_bytes());
            }
            (_, false) => write_content(&mut reply, &body, trailers),
        }
        Some(reply)
    }
}
