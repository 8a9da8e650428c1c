//! WebSockets: the handshake, refusals, and a few frames.

use crate::axum_behaviour::cases;
use crate::axum_behaviour::compare::{Case, Served};
use crate::axum_behaviour::reply::{Ask, Reply};
use axum::Router;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{any, get};
use std::io::{Read, Write};

cases! {
    a_handshake_is_answered_with_the_key,
    a_protocol_that_both_know_is_chosen,
    a_protocol_that_nobody_knows_is_left_out,
    a_handshake_of_http_1_0_is_refused,
    a_handshake_without_upgrade_is_refused,
    a_handshake_of_another_version_is_refused,
    a_handshake_without_a_key_is_refused,
    a_handshake_with_post_is_refused,
    a_handler_may_refuse_before_the_upgrade,
    messages_go_both_ways,
    messages_that_come_with_the_handshake_are_read,
    a_ping_is_answered,
    a_message_may_come_in_fragments,
    a_message_beyond_the_limit_ends_the_connection,
    the_server_may_close_with_a_reason,
    state_and_parameters_are_there_beside_a_socket,
}

const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

fn handshake(target: &str) -> Ask {
    let ask = Ask::new("GET", target).field("connection", "upgrade").field("upgrade", "websocket");
    ask.field("sec-websocket-version", "13").field("sec-websocket-key", KEY)
}

async fn echo(upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async |mut socket: WebSocket| {
        while let Some(Ok(message)) = socket.recv().await {
            let is_data = matches!(message, Message::Text(_) | Message::Binary(_));
            if is_data && socket.send(message).await.is_err() {
                return;
            }
        }
    })
}

fn echoes() -> Router {
    Router::new().route("/echo", get(echo)).route("/any", any(echo))
}

/// The reference sends Date with a 101; RFC 9110 §6.6.1 leaves that to the server.
const NO_DATE: &str = "date (a date) is (none)";

fn a_handshake_is_answered_with_the_key(case: &mut Case) {
    case.differs(NO_DATE);
    case.serve(echoes());
    for path in ["/echo", "/any"] {
        // This key and its accept value are from RFC 6455 §1.3.
        let reply = case.send(&handshake(path));
        reply.is(101, "").has("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        reply.has("upgrade", "websocket").lacks("content-length").lacks("transfer-encoding");
    }
}

fn protocols() -> Router {
    let handler = async |upgrade: WebSocketUpgrade| {
        upgrade.protocols(["first", "second"]).on_upgrade(async |mut socket: WebSocket| {
            let chosen = socket.protocol().map_or("none", |name| name.to_str().unwrap_or("none"));
            let chosen = chosen.to_owned();
            let _ = socket.send(Message::text(chosen)).await;
        })
    };
    Router::new().route("/", get(handler))
}

fn a_protocol_that_both_know_is_chosen(case: &mut Case) {
    case.differs(NO_DATE);
    case.serve(protocols());
    let ask = handshake("/").field("sec-websocket-protocol", "third, second, first");
    case.send(&ask).is(101, "").has("sec-websocket-protocol", "first");
    let text = talk(case, &ask, b"", 7);
    assert_eq!(text, [b"\x81\x05first".as_slice()].concat());
}

fn a_protocol_that_nobody_knows_is_left_out(case: &mut Case) {
    case.differs(NO_DATE);
    case.serve(protocols());
    let ask = handshake("/").field("sec-websocket-protocol", "third");
    case.send(&ask).is(101, "").lacks("sec-websocket-protocol");
}

fn a_handshake_of_http_1_0_is_refused(case: &mut Case) {
    case.serve(echoes());
    let text = case.each(|server| {
        let bytes = String::from_utf8(handshake("/echo").bytes()).expect("the bytes are UTF-8");
        let reply = server.talk(bytes.replace("HTTP/1.1", "HTTP/1.0"));
        let (head, body) = reply.split_once("\r\n\r\n").unwrap_or_default();
        format!("{} {body}", head.split(' ').nth(1).unwrap_or_default())
    });
    assert!(text.starts_with("400 ") || text.starts_with("426 "), "{text}");
}

fn a_handshake_without_upgrade_is_refused(case: &mut Case) {
    case.serve(echoes());
    case.get("/echo").says(400, "Connection");
    let ask = Ask::new("GET", "/echo").field("connection", "upgrade");
    case.send(&ask).says(400, "Upgrade");
    let ask = ask.field("upgrade", "h2c");
    case.send(&ask).says(400, "Upgrade");
}

fn a_handshake_of_another_version_is_refused(case: &mut Case) {
    case.serve(echoes());
    let ask = Ask::new("GET", "/echo").field("connection", "upgrade").field("upgrade", "websocket");
    let with_key = ask.field("sec-websocket-key", KEY);
    case.send(&with_key).says(400, "Sec-WebSocket-Version");
    case.send(&with_key.field("sec-websocket-version", "8")).says(400, "Sec-WebSocket-Version");
}

fn a_handshake_without_a_key_is_refused(case: &mut Case) {
    case.serve(echoes());
    let ask = Ask::new("GET", "/echo").field("connection", "upgrade").field("upgrade", "websocket");
    case.send(&ask.field("sec-websocket-version", "13")).says(400, "Sec-WebSocket-Key");
}

fn a_handshake_with_post_is_refused(case: &mut Case) {
    case.serve(echoes());
    let ask = Ask::new("POST", "/any").field("connection", "upgrade").field("upgrade", "websocket");
    case.send(&ask.field("sec-websocket-version", "13").field("sec-websocket-key", KEY))
        .says(405, "GET");
}

fn a_handler_may_refuse_before_the_upgrade(case: &mut Case) {
    use axum::http::StatusCode;
    let handler = async |_: WebSocketUpgrade| (StatusCode::FORBIDDEN, "not you");
    case.serve(Router::new().route("/", get(handler)));
    case.send(&handshake("/")).is(403, "not you").has("content-length", "7").lacks("upgrade");
}

/// A client's frame, whose mask is zero.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match u16::try_from(payload.len()) {
        Ok(length) if length < 126 => frame.push(0x80 | payload.len() as u8),
        Ok(length) => {
            frame.push(0x80 | 126);
            frame.extend(length.to_be_bytes());
        }
        Err(_) => panic!("longer frames are not needed here"),
    }
    frame.extend([0; 4]);
    frame.extend(payload);
    frame
}

/// Does the handshake, sends frames, and returns `count` bytes of the response.
fn talk(case: &mut Case, ask: &Ask, frames: &[u8], count: usize) -> Vec<u8> {
    let converse = |server: &Served| {
        let mut stream = server.connect();
        stream.write_all(&ask.bytes()).expect("the server reads");
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).expect("the server responds");
            head.push(byte[0]);
        }
        stream.write_all(frames).expect("the server reads");
        let mut seen = Vec::new();
        let mut limited = stream.take(count as u64);
        let _ = limited.read_to_end(&mut seen);
        seen.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let hex = case.each(converse);
    let digits: Vec<char> = hex.chars().collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16);
    digits.chunks(2).map(|pair| byte(pair).expect("the text is hexadecimal")).collect()
}

fn messages_go_both_ways(case: &mut Case) {
    case.serve(echoes());
    let frames = [frame(0x81, b"hello"), frame(0x82, &[0, 1, 2])].concat();
    let seen = talk(case, &handshake("/echo"), &frames, 12);
    assert_eq!(seen, b"\x81\x05hello\x82\x03\x00\x01\x02");
}

fn messages_that_come_with_the_handshake_are_read(case: &mut Case) {
    case.serve(echoes());
    let text = case.each(|server| {
        let mut stream = server.connect();
        let bytes = [handshake("/echo").bytes(), frame(0x81, b"early")].concat();
        stream.write_all(&bytes).expect("the server reads");
        let mut reader = std::io::BufReader::new(stream);
        let reply = Reply::take(&mut reader, false).expect("a response");
        let mut echoed = [0; 7];
        reader.read_exact(&mut echoed).expect("the server echoes the bytes");
        format!("{} {:?}", reply.status(), String::from_utf8_lossy(&echoed))
    });
    assert!(text.ends_with("early\""), "{text}");
}

fn a_ping_is_answered(case: &mut Case) {
    case.serve(echoes());
    let seen = talk(case, &handshake("/echo"), &frame(0x89, b"are you"), 9);
    assert_eq!(seen, b"\x8a\x07are you");
}

fn a_message_may_come_in_fragments(case: &mut Case) {
    case.serve(echoes());
    let frames = [frame(0x01, b"one "), frame(0x00, b"two "), frame(0x80, b"three")].concat();
    let seen = talk(case, &handshake("/echo"), &frames, 15);
    assert_eq!(seen, b"\x81\x0done two three");
}

fn a_message_beyond_the_limit_ends_the_connection(case: &mut Case) {
    let handler = async |upgrade: WebSocketUpgrade| {
        upgrade.max_message_size(10).on_upgrade(async |mut socket: WebSocket| {
            while let Some(Ok(message)) = socket.recv().await {
                if socket.send(message).await.is_err() {
                    return;
                }
            }
        })
    };
    case.serve(Router::new().route("/", get(handler)));
    let frames = [frame(0x81, b"short"), frame(0x81, b"much too long")].concat();
    let seen = talk(case, &handshake("/"), &frames, 100);
    assert!(seen.starts_with(b"\x81\x05short") && !seen.ends_with(b"long"), "{seen:?}");
}

fn the_server_may_close_with_a_reason(case: &mut Case) {
    let handler = async |upgrade: WebSocketUpgrade| {
        upgrade.on_upgrade(async |mut socket: WebSocket| {
            let close = CloseFrame { code: 4000, reason: "enough".into() };
            let _ = socket.send(Message::Close(Some(close))).await;
            while let Some(Ok(_)) = socket.recv().await {}
        })
    };
    case.serve(Router::new().route("/", get(handler)));
    let seen = talk(case, &handshake("/"), &frame(0x88, &4000_u16.to_be_bytes()), 100);
    assert_eq!(seen, b"\x88\x08\x0f\xa0enough");
}

fn state_and_parameters_are_there_beside_a_socket(case: &mut Case) {
    let handler = async |State(state): State<&'static str>,
                         Path(name): Path<String>,
                         upgrade: WebSocketUpgrade| {
        upgrade.on_upgrade(async move |mut socket: WebSocket| {
            let _ = socket.send(Message::text(format!("{state} {name}"))).await;
            let _ = socket.send(Message::Close(None)).await;
        })
    };
    case.serve(Router::new().route("/{name}", get(handler)).with_state("hello"));
    let seen = talk(case, &handshake("/Ada"), &[], 13);
    assert_eq!(seen, b"\x81\x09hello Ada\x88\x00");
}
