//! Server-sent events: each posted message goes to the subscribers of all workers. A client that
//! reconnects receives the messages it missed. A client that reads too slowly is disconnected, so
//! that it does not delay the others.
#![forbid(unsafe_code)]

use peregrine::prelude::*;
use peregrine::web::sse::Sender;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The number of messages kept for clients that reconnect.
const KEPT_MAX: usize = 100;

/// The state that all workers share.
#[derive(Clone, Default)]
struct Newsroom(Arc<Mutex<News>>);

#[derive(Default)]
struct News {
    last_id: u64,
    kept: VecDeque<(u64, Event)>,
    readers: Vec<Sender>,
}

impl Newsroom {
    fn with<T>(&self, work: impl FnOnce(&mut News) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl News {
    /// Sends `text` to all readers. A reader whose queue is full is dropped; its client reconnects
    /// and receives what it missed.
    fn tell(&mut self, text: &str) -> u64 {
        self.last_id += 1;
        let event = Event::default().event("news").id(self.last_id).data(text);
        self.readers.retain(|reader| reader.try_send(event.clone()).is_ok());
        self.kept.push_back((self.last_id, event));
        if self.kept.len() > KEPT_MAX {
            self.kept.pop_front();
        }
        self.last_id
    }

    /// Adds a reader, after sending it the messages it missed.
    fn add(&mut self, reader: Sender, last: u64) {
        let missed = self.kept.iter().filter(|(id, _)| *id > last);
        let mut sent = missed.map(|(_, event)| reader.try_send(event.clone()));
        if sent.all(|sent| sent.is_ok()) {
            self.readers.push(reader);
        }
    }
}

async fn listen(State(room): State<Newsroom>, last: Option<LastEventId<u64>>) -> Sse {
    let (sender, sse) = sse::channel_with_capacity(2 * KEPT_MAX);
    room.with(|news| news.add(sender, last.map_or(news.last_id, |LastEventId(last)| last)));
    // On shutdown, the last event makes clients reconnect after one second, to a new process.
    sse.final_event(Event::default().event("end").data("come again").retry(Duration::from_secs(1)))
}

async fn tell(State(room): State<Newsroom>, text: String) -> String {
    format!("number {}\n", room.with(|news| news.tell(&text)))
}

/// Events for a single client, from a task that waits while the client reads slowly.
async fn countdown(Path(from): Path<u32>) -> Sse {
    let (sender, sse) = sse::channel();
    tokio::task::spawn_local(async move {
        for left in (0..from).rev() {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if sender.send(Event::default().data(left.to_string())).await.is_err() {
                return;
            }
        }
    });
    sse
}

const PAGE: &str = "<!doctype html><meta charset=utf-8><title>News</title><ul id=news></ul><script>
const source = new EventSource('/news');
source.addEventListener('news', event => {
  const item = document.createElement('li');
  item.textContent = event.data;
  document.getElementById('news').append(item);
});
</script>";

const ABOUT: &str = "\
Server-sent events: each posted message goes to all subscribers.

Try: curl -N http://127.0.0.1:8080/news
     curl -d hello http://127.0.0.1:8080/news";

fn main() -> peregrine::Result<()> {
    let address = peregrine_examples::address(ABOUT);
    let room = Newsroom::default();
    Server::bind(address).serve(move || {
        App::new()
            .state(room.clone())
            .get("/", || Html(PAGE))
            .get("/news", listen)
            .post("/news", tell)
            .get("/countdown/{from}", countdown)
    })
}
