//! What a server printed, in bounded memory: the last bytes are kept, older ones are counted.

use std::collections::VecDeque;
use std::io::{self, PipeReader, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How many bytes are read at a time.
const READ_BYTES: usize = 8 * 1024;

/// How often the end of the output is looked for.
const POLL_PAUSE: Duration = Duration::from_millis(2);

/// The end of what a server printed on both of its outputs, in the order of writing.
#[derive(Debug)]
pub(crate) struct Output {
    kept: Arc<Mutex<Kept>>,
    reader: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Kept {
    bytes: VecDeque<u8>,
    dropped_bytes: u64,
}

impl Output {
    /// Reads `pipe` to its end on a thread of its own, so that the server never waits for a reader.
    pub(crate) fn read(mut pipe: PipeReader, bytes_max: usize) -> io::Result<Output> {
        let kept = Arc::new(Mutex::new(Kept::default()));
        let shared = kept.clone();
        let read = move || {
            let mut buffer = [0; READ_BYTES];
            loop {
                match pipe.read(&mut buffer) {
                    Ok(0) => return,
                    Ok(length) => shared
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .append(&buffer[..length], bytes_max),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
        };
        let reader = std::thread::Builder::new().name("server output".to_owned()).spawn(read)?;
        Ok(Output { kept, reader })
    }

    /// The kept text; a first line says how much was dropped before it.
    pub(crate) fn text(&self) -> String {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = kept.bytes.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        match kept.dropped_bytes {
            0 => text.into_owned(),
            dropped => format!("[{dropped} bytes before this were not kept]\n{text}"),
        }
    }

    /// Waits for the end of the output, but not longer than `timeout`: a process that escaped may
    /// hold the pipe for ever.
    pub(crate) fn wait_end(&self, timeout: Duration) {
        let end = Instant::now() + timeout;
        while !self.reader.is_finished() && Instant::now() < end {
            std::thread::sleep(POLL_PAUSE);
        }
    }
}

impl Kept {
    fn append(&mut self, bytes: &[u8], bytes_max: usize) {
        self.bytes.extend(bytes);
        let excess = self.bytes.len().saturating_sub(bytes_max);
        self.bytes.drain(..excess);
        self.dropped_bytes += excess as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn only_the_end_is_kept_and_the_rest_is_counted() {
        let (reader, mut writer) = io::pipe().unwrap();
        let output = Output::read(reader, 10).unwrap();
        for _ in 0..1000 {
            writer.write_all(b"0123456789").unwrap();
        }
        writer.write_all(b"the end").unwrap();
        drop(writer);
        output.wait_end(Duration::from_secs(60));
        assert_eq!(output.text(), "[9997 bytes before this were not kept]\n789the end");
    }
}
