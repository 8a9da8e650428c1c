use crate::harness::Host;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{Read, Write};
use std::path::Path;
use tempfile::tempdir;

/// Sends a request from a socket that is bound to `own`, if given.
fn ask(server: &Path, own: Option<&Path>) -> String {
    let mut socket = Socket::new(Domain::UNIX, Type::STREAM, None).expect("there are descriptors");
    if let Some(own) = own {
        let own = SockAddr::unix(own).expect("the path is short");
        socket.bind(&own).expect("the name is free");
    }
    let server = SockAddr::unix(server).expect("the path is short");
    socket.connect(&server).expect("the server listens");
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    socket.write_all(request).expect("the server reads");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("the response is UTF-8");
    text
}

pub(crate) async fn a_handler_sees_the_name_of_its_peer_s_socket(host: Host) {
    let folder = tempdir().expect("the disk is writable");
    let path = folder.path().join("server.sock");
    let server = host.serve_unix(&path).await;
    let asked = tokio::task::spawn_blocking({
        let (path, own) = (path.clone(), folder.path().join("client.sock"));
        move || (ask(&path, None), ask(&path, Some(&own)))
    });
    let (nameless, named) = asked.await.expect("the server responds");
    assert!(nameless.starts_with("HTTP/1.1 200 OK\r\n"), "{nameless}");
    assert!(nameless.ends_with("\r\n\r\nHello, nobody!"), "{nameless}");
    assert!(named.ends_with("\r\n\r\nHello, client.sock!"), "{named}");
    server.end().await;
    // Peregrine removes the socket file it created; with axum the program has to do that.
    assert_eq!(path.exists(), !host.engine.is_peregrine());
}
