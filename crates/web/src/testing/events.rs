//! Parses server-sent events as a client does.

use std::collections::VecDeque;
use std::mem::take;
use std::time::Duration;

/// A received event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestEvent {
    /// The event's name; `message` if the server sent none.
    pub name: String,
    /// The event's data, with lines separated by LF.
    pub data: String,
    /// The ID of this event, or of the last event before it that had one.
    pub id: String,
}

/// Parses `text/event-stream` (WHATWG HTML, section 9.2.6), in chunks of any size.
#[derive(Debug, Default)]
pub struct TestEventReader {
    /// The incomplete current line.
    line: Vec<u8>,
    /// The last byte was CR, so a following LF belongs to it.
    is_after_cr: bool,
    /// Whether the first line, which may begin with a byte order mark, was read.
    has_begun: bool,
    name: String,
    data: String,
    id: String,
    retry: Option<Duration>,
    comments: usize,
    events: VecDeque<TestEvent>,
}

impl TestEventReader {
    /// Parses the next bytes of the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let was_after_cr = take(&mut self.is_after_cr);
            match byte {
                b'\n' if was_after_cr => {}
                b'\r' | b'\n' => {
                    self.is_after_cr = *byte == b'\r';
                    let line = take(&mut self.line);
                    self.process_line(&String::from_utf8_lossy(&line));
                }
                _ => self.line.push(*byte),
            }
        }
    }

    /// Returns the next complete event and removes it.
    pub fn next_event(&mut self) -> Option<TestEvent> {
        self.events.pop_front()
    }

    /// How long the client should wait before it reconnects, if the server sent a `retry` field.
    #[must_use]
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// The number of comments received.
    #[must_use]
    pub fn comments(&self) -> usize {
        self.comments
    }

    fn process_line(&mut self, line: &str) {
        let has_begun = std::mem::replace(&mut self.has_begun, true);
        let line = if has_begun { line } else { line.strip_prefix('\u{feff}').unwrap_or(line) };
        if line.is_empty() {
            return self.dispatch();
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" => self.comments += 1,
            "event" => value.clone_into(&mut self.name),
            "data" => {
                self.data.push_str(value);
                self.data.push('\n');
            }
            "id" if !value.contains('\0') => value.clone_into(&mut self.id),
            "retry" if value.bytes().all(|byte| byte.is_ascii_digit()) => {
                self.retry = value.parse().ok().map(Duration::from_millis).or(self.retry);
            }
            _ => {}
        }
    }

    /// Completes the current event. An event without data is dropped.
    fn dispatch(&mut self) {
        let (name, mut data) = (take(&mut self.name), take(&mut self.data));
        // Removes the LF after the last line of data.
        if data.pop().is_none() {
            return;
        }
        let name = if name.is_empty() { "message".to_owned() } else { name };
        self.events.push_back(TestEvent { name, data, id: self.id.clone() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(String, String, String)> {
        let mut whole = TestEventReader::default();
        whole.feed(text.as_bytes());
        let mut bytewise = TestEventReader::default();
        text.as_bytes().iter().for_each(|byte| bytewise.feed(std::slice::from_ref(byte)));
        assert_eq!(whole.events, bytewise.events, "any chunking gives the same events");
        whole.events.into_iter().map(|event| (event.name, event.data, event.id)).collect()
    }

    #[test]
    fn parses_the_examples_of_the_standard() {
        for (text, expected) in [
            ("data: YHOO\ndata: +2\ndata: 10\n\n", vec![("message", "YHOO\n+2\n10", "")]),
            (
                ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
                vec![
                    ("message", "first event", "1"),
                    ("message", "second event", ""),
                    ("message", " third event", ""),
                ],
            ),
            ("data\n\ndata\ndata\n\ndata:", vec![("message", "", ""), ("message", "\n", "")]),
            ("data:test\n\ndata: test\n\n", vec![("message", "test", ""), ("message", "test", "")]),
            ("\u{feff}event: add\rdata: 7\r\n\r\n", vec![("add", "7", "")]),
            ("id: 1\n\nid: a\0b\nevent: x\n\ndata: a\n\n", vec![("message", "a", "1")]),
        ] {
            let expected: Vec<_> = expected
                .into_iter()
                .map(|(name, data, id)| (name.to_owned(), data.to_owned(), id.to_owned()))
                .collect();
            assert_eq!(read(text), expected, "{text:?}");
        }
    }
}
