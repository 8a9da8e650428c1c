//! Sessions through a server on every driver, in a store that its workers share.

use peregrine::prelude::*;
use peregrine::session::{Session, SessionManager};
use peregrine::{DriverChoice, Error, RunningServer};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::time::Duration;
use tower_sessions_memory_store::MemoryStore;

macro_rules! on_both_drivers {
    ($($case:ident,)*) => {
        mod on_tokio {
            $(#[test] fn $case() { super::$case(super::DriverChoice::Tokio); })*
        }
        #[cfg(target_os = "linux")]
        mod on_uring {
            $(#[test] fn $case() { super::$case(super::DriverChoice::Uring); })*
        }
    };
}

on_both_drivers! {
    what_one_worker_remembers_the_others_know_when_the_answer_is_there,
    a_login_that_waits_changes_the_id_of_its_own_session_only,
}

/// Only a hang takes this long.
const PATIENCE: Duration = Duration::from_secs(30);

fn start(choice: DriverChoice) -> Option<RunningServer> {
    let workers = NonZeroUsize::new(2).expect("the value is not zero");
    let store = MemoryStore::default();
    let app = move || {
        App::new()
            .wrap(SessionManager::new(store.clone()))
            .get("/visit", |session: Session| -> Result<String, Problem> {
                let visits = session.get::<u32>("visits").unwrap_or(0) + 1;
                session.insert("visits", visits)?;
                Ok(visits.to_string())
            })
            .get("/login/{name}", login)
            .get("/who", |session: Session| session.get::<String>("user").unwrap_or_default())
    };
    match Server::bind("127.0.0.1:0").driver(choice).workers(workers).quiet().start(app) {
        Err(error @ Error::Driver { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        running => Some(running.expect("the server starts")),
    }
}

async fn login(session: Session, Path(name): Path<String>) -> Result<String, Problem> {
    tokio::time::sleep(Duration::from_millis(5)).await;
    session.regenerate();
    session.insert("user", &name)?;
    Ok(name)
}

fn send(running: &RunningServer, path: &str, cookie: &str) -> TcpStream {
    let mut peer =
        TcpStream::connect(running.http_address().expect("the server has an HTTP listener"))
            .expect("the server accepts connections");
    peer.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nCookie: {cookie}\r\n\r\n");
    peer.write_all(request.as_bytes()).expect("connected");
    peer
}

/// The content, and the cookie if a new one is set.
fn receive(mut peer: TcpStream) -> (String, Option<String>) {
    let mut text = String::new();
    peer.read_to_string(&mut text).expect("text");
    let cookie = text.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("set-cookie")
            .then(|| value.split(';').next().unwrap_or_default().to_owned())
    });
    let content = text.split_once("\r\n\r\n").expect("a head").1.to_owned();
    (content, cookie)
}

fn what_one_worker_remembers_the_others_know_when_the_answer_is_there(choice: DriverChoice) {
    let Some(running) = start(choice) else { return };
    let (_, cookie) = receive(send(&running, "/visit", "a=b"));
    let cookie = cookie.expect("a new session");
    // Any worker may get each connection, and each response shows that the session was saved.
    for visit in 2..40 {
        assert_eq!(receive(send(&running, "/visit", &cookie)).0, visit.to_string());
    }
}

fn a_login_that_waits_changes_the_id_of_its_own_session_only(choice: DriverChoice) {
    let Some(running) = start(choice) else { return };
    let begun: Vec<_> =
        (0..10).map(|_| receive(send(&running, "/visit", "")).1.expect("a session")).collect();
    let peers: Vec<_> = begun
        .iter()
        .enumerate()
        .map(|(number, cookie)| send(&running, &format!("/login/{number}"), cookie))
        .collect();
    for (number, (peer, old)) in peers.into_iter().zip(&begun).enumerate() {
        let (name, new) = receive(peer);
        let new = new.expect("another id");
        assert!(name == number.to_string() && new != *old);
        assert_eq!(receive(send(&running, "/who", &new)).0, name);
        assert_eq!(receive(send(&running, "/who", old)).0, "", "the old id is invalid");
    }
}
