//! One event, in its wire format.

use bytes::Bytes;
use serde::Serialize;
use std::error::Error;
use std::fmt;
use std::io::Write;
use std::time::Duration;

/// An event to send.
///
/// It is serialized as it is built, so cloning it only copies bytes. If any part of it is invalid,
/// the whole event is rejected: [`Event::validate`] and [`Sender::send`](super::Sender::send)
/// return the error, and in a stream the error ends the stream.
///
/// ```
/// use peregrine::web::sse::Event;
///
/// let event = Event::default().event("tick").id(7).data("two\nlines");
/// let bytes = event.into_bytes().expect("valid");
/// assert_eq!(bytes, "event: tick\nid: 7\ndata: two\ndata: lines\n\n");
/// assert!(Event::default().id("a\nb").validate().is_err());
/// ```
#[derive(Clone, Default)]
pub struct Event {
    bytes: Vec<u8>,
    invalid: Option<InvalidEvent>,
}

/// Why an event cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidEvent {
    /// The id has a line break, or a NUL. Readers would ignore an id with a NUL.
    Id,
    /// The name has a line break.
    Name,
    /// The data cannot be serialized as JSON.
    Json(String),
}

impl fmt::Display for InvalidEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id => f.write_str("the id of an event has a line break or NUL"),
            Self::Name => f.write_str("the name of an event has a line break"),
            Self::Json(error) => {
                write!(f, "the data of an event cannot be serialized as JSON: {error}")
            }
        }
    }
}

impl Error for InvalidEvent {}

impl Event {
    /// Adds data. A line break (LF, CR or CRLF) arrives as LF. Data that is added later starts a
    /// new line. Readers do not report an event without data, but use its id and its `retry`.
    #[must_use]
    pub fn data(mut self, data: impl AsRef<str>) -> Self {
        self.write_lines("data: ", data.as_ref());
        self
    }

    /// Adds data as JSON.
    #[must_use]
    pub fn json_data(self, data: &(impl Serialize + ?Sized)) -> Self {
        match serde_json::to_string(data) {
            Ok(json) => self.data(json),
            Err(error) => self.set_invalid(InvalidEvent::Json(error.to_string())),
        }
    }

    /// Sets the name under which readers listen for the event. Default `message`.
    #[must_use]
    pub fn event(mut self, name: impl AsRef<str>) -> Self {
        let name = name.as_ref();
        if name.contains(['\r', '\n']) {
            return self.set_invalid(InvalidEvent::Name);
        }
        self.write_lines("event: ", name);
        self
    }

    /// Sets the id, a number or text. A reader that reconnects sends the last id that it received:
    /// see [`LastEventId`](super::LastEventId). An empty id clears the id that the reader has
    /// stored.
    #[must_use]
    pub fn id(mut self, id: impl fmt::Display) -> Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(b"id: ");
        let written = write!(self.bytes, "{id}");
        let is_valid = !self.bytes[start..].iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n'));
        if written.is_err() || !is_valid {
            self.bytes.truncate(start);
            return self.set_invalid(InvalidEvent::Id);
        }
        self.bytes.push(b'\n');
        self
    }

    /// Sets how long the reader waits before it reconnects, from now on. Rounded down to
    /// milliseconds. If no event sets it, the reader decides: usually a few seconds.
    #[must_use]
    pub fn retry(mut self, delay: Duration) -> Self {
        let milliseconds = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.write_lines("retry: ", &milliseconds.to_string());
        self
    }

    /// Adds a comment, which readers discard.
    #[must_use]
    pub fn comment(mut self, comment: impl AsRef<str>) -> Self {
        self.write_lines(": ", comment.as_ref());
        self
    }

    /// Returns the event if it is valid. Use this for ids and names that come from elsewhere.
    ///
    /// # Errors
    /// The event is invalid. If there are several reasons, the error is the first one.
    pub fn validate(self) -> Result<Self, InvalidEvent> {
        self.invalid.clone().map_or(Ok(self), Err)
    }

    /// The bytes to send, with the empty line that ends an event.
    ///
    /// # Errors
    /// The event is invalid. If there are several reasons, the error is the first one.
    pub fn into_bytes(mut self) -> Result<Bytes, InvalidEvent> {
        self.bytes.push(b'\n');
        self.invalid.map_or(Ok(Bytes::from(self.bytes)), Err)
    }

    /// Rejects the event. If there was an error already, keeps that one.
    fn set_invalid(mut self, error: InvalidEvent) -> Self {
        self.invalid.get_or_insert(error);
        self
    }

    /// Writes each line of `text` after `field`, because a field ends at the first line break.
    fn write_lines(&mut self, field: &str, text: &str) {
        self.bytes.reserve(field.len() + text.len() + 2);
        let mut rest = text;
        loop {
            let end = rest.find(['\r', '\n']);
            self.bytes.extend_from_slice(field.as_bytes());
            self.bytes.extend_from_slice(&rest.as_bytes()[..end.unwrap_or(rest.len())]);
            self.bytes.push(b'\n');
            let Some(end) = end else { return };
            rest = rest[end..].strip_prefix("\r\n").unwrap_or(&rest[end + 1..]);
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.invalid {
            Some(invalid) => write!(f, "Event({invalid})"),
            None => write!(f, "Event({:?})", String::from_utf8_lossy(&self.bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(event: Event) -> String {
        String::from_utf8(event.into_bytes().expect("valid").into()).expect("text")
    }

    #[test]
    fn serializes_every_part_of_an_event() {
        let event = Event::default;
        for (event, expected) in [
            (event(), "\n"),
            (event().data("a"), "data: a\n\n"),
            (event().data(""), "data: \n\n"),
            (event().data(" a"), "data:  a\n\n"),
            (event().data("a\nb\rc\r\nd"), "data: a\ndata: b\ndata: c\ndata: d\n\n"),
            (event().data("\n"), "data: \ndata: \n\n"),
            (event().data("\r\r\n\n"), "data: \ndata: \ndata: \ndata: \n\n"),
            (event().data("a\n"), "data: a\ndata: \n\n"),
            (event().data("a").data("b"), "data: a\ndata: b\n\n"),
            (event().json_data(&[1, 2]), "data: [1,2]\n\n"),
            (event().json_data("a\nb"), "data: \"a\\nb\"\n\n"),
            (event().event("tick").data("a"), "event: tick\ndata: a\n\n"),
            (event().id(7).data("a"), "id: 7\ndata: a\n\n"),
            (event().id("").data("a"), "id: \ndata: a\n\n"),
            (event().retry(Duration::from_micros(2_500_900)), "retry: 2500\n\n"),
            (event().comment("a\r\nb"), ": a\n: b\n\n"),
        ] {
            assert_eq!(wire(event), expected);
        }
    }

    #[test]
    fn rejects_an_event_with_an_invalid_id_name_or_json() {
        let keyed = std::collections::BTreeMap::from([((1, 2), 3)]);
        let event = || Event::default().data("a");
        for (event, expected) in [
            (event().id("a\nb"), InvalidEvent::Id),
            (event().id("a\r"), InvalidEvent::Id),
            (event().id("\0"), InvalidEvent::Id),
            (event().event("a\nb"), InvalidEvent::Name),
            (event().event("\r"), InvalidEvent::Name),
            (event().event("\r").id("\n"), InvalidEvent::Name),
        ] {
            assert_eq!(event.clone().into_bytes(), Err(expected.clone()));
            assert_eq!(event.validate().err(), Some(expected));
        }
        assert!(matches!(event().json_data(&keyed).into_bytes(), Err(InvalidEvent::Json(_))));
        assert!(event().id("\u{e9}").event("").validate().is_ok());
    }
}
