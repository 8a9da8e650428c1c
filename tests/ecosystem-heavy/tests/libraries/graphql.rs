//! async-graphql: its axum services, mounted, and its schema inside our handlers.

use async_graphql::http::{ALL_WEBSOCKET_PROTOCOLS, WsMessage};
use async_graphql::{Context, Object, Schema, Subscription};
use async_graphql_axum::{GraphQL, GraphQLSubscription};
use futures_util::{SinkExt, Stream, StreamExt, future, stream};
use peregrine::DriverChoice;
use peregrine::prelude::*;
use peregrine::tower::Mount;
use peregrine::websocket::{CloseCode, Message, WebSocketUpgrade};
use peregrine_ecosystem_tests::{base_url, client, end, in_runtime, on_both_drivers, start};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use tokio::sync::broadcast;
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Utf8Bytes};

on_both_drivers! {
    what_a_mutation_adds_a_query_finds,
    a_subscription_hears_of_what_is_added,
    what_is_no_graphql_is_refused,
}

/// State shared by the resolvers.
#[derive(Clone)]
struct Nest {
    birds: Arc<Mutex<Vec<String>>>,
    news: broadcast::Sender<String>,
}

struct Birds;

#[Object]
impl Birds {
    async fn birds(&self, context: &Context<'_>) -> async_graphql::Result<Vec<String>> {
        Ok(context.data::<Nest>()?.birds.lock().expect("the mutex is not poisoned").clone())
    }
}

struct Changes;

#[Object]
impl Changes {
    /// Adds a bird, and returns the number of birds.
    async fn add(&self, context: &Context<'_>, name: String) -> async_graphql::Result<usize> {
        let nest = context.data::<Nest>()?;
        // There may be no subscriber.
        let _ = nest.news.send(name.clone());
        let mut birds = nest.birds.lock().expect("the mutex is not poisoned");
        birds.push(name);
        Ok(birds.len())
    }
}

struct News;

#[Subscription]
impl News {
    /// Reports that it is listening, and then each added bird.
    async fn added(
        &self,
        context: &Context<'_>,
    ) -> async_graphql::Result<impl Stream<Item = String>> {
        let news = context.data::<Nest>()?.news.subscribe();
        let added = stream::unfold(news, async |mut news| {
            let name = news.recv().await.ok()?;
            Some((name, news))
        });
        Ok(stream::once(future::ready("listening".to_owned())).chain(added))
    }
}

type Graph = Schema<Birds, Changes, News>;

fn schema() -> Graph {
    let nest = Nest { birds: Arc::default(), news: broadcast::channel(16).0 };
    Schema::build(Birds, Changes, News).data(nest).finish()
}

/// Its axum services are tower services, so neither needs a router.
fn mounted(schema: Graph) -> App {
    let subscriptions = GraphQLSubscription::new(schema.clone());
    App::new().mount("/graphql", GraphQL::new(schema)).mount("/news", subscriptions)
}

/// The same with our handlers and our WebSockets.
fn native(schema: Graph) -> App {
    App::new().state(schema).post("/graphql", execute).get("/news", subscribe)
}

async fn execute(
    schema: StateRef<Graph>,
    Json(request): Json<async_graphql::Request>,
) -> Json<async_graphql::Response> {
    Json(schema.execute(request).await)
}

async fn subscribe(upgrade: WebSocketUpgrade, State(schema): State<Graph>) -> Response {
    let upgrade = upgrade.protocols(ALL_WEBSOCKET_PROTOCOLS);
    let Some(protocol) = upgrade.selected_protocol().and_then(|name| name.parse().ok()) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    upgrade.on_upgrade(async move |socket| {
        let (sender, receiver) = socket.split();
        let requests = receiver.filter_map(async |message| match message {
            Ok(Message::Text(text)) => Some(text.as_bytes().to_vec()),
            Ok(Message::Binary(bytes)) => Some(bytes.to_vec()),
            _ => None,
        });
        let answers = async_graphql::http::WebSocket::new(schema, requests, protocol);
        let mut answers = std::pin::pin!(answers);
        while let Some(answer) = answers.next().await {
            let sent = match answer {
                WsMessage::Text(text) => sender.send(Message::from(text)).await,
                WsMessage::Close(code, reason) => {
                    sender.send(Message::close(CloseCode(code), reason)).await
                }
            };
            if sent.is_err() {
                return;
            }
        }
    })
}

/// A form of the application, with its name.
type Form = (&'static str, fn(Graph) -> App);

const FORMS: [Form; 2] = [("mounted", mounted), ("native", native)];

async fn ask(base: &str, query: &str, variables: Value) -> Value {
    let document = json!({ "query": query, "variables": variables });
    let request = client(None).post(format!("{base}/graphql")).json(&document);
    let response = request.send().await.expect("the server responds");
    assert_eq!(response.status(), 200);
    response.json().await.expect("the text is JSON")
}

const ADD: &str = "mutation($name: String!) { add(name: $name) }";

fn what_a_mutation_adds_a_query_finds(choice: DriverChoice) {
    for (form, make) in FORMS {
        let schema = schema();
        // Workers share the schema's data.
        let Some(running) = start(choice, 2, move || make(schema.clone())) else { return };
        let base = base_url(&running);
        in_runtime(async {
            assert_eq!(ask(&base, "{ birds }", Value::Null).await["data"], json!({"birds": []}));
            for (number, name) in [(1, "hobby"), (2, "kestrel")] {
                let added = ask(&base, ADD, json!({ "name": name })).await;
                assert_eq!(added["data"], json!({ "add": number }), "{form}: {added}");
            }
            let all = ask(&base, "{ birds }", Value::Null).await;
            assert_eq!(all["data"], json!({"birds": ["hobby", "kestrel"]}), "{form}: {all}");
            // An unknown field is a GraphQL error in a 200.
            let unknown = ask(&base, "{ eggs }", Value::Null).await;
            let message = unknown["errors"][0]["message"].as_str().expect("a message");
            assert!(message.contains("eggs"), "{form}: {unknown}");
        });
        end(running);
    }
}

fn a_subscription_hears_of_what_is_added(choice: DriverChoice) {
    for (form, make) in FORMS {
        let schema = schema();
        let Some(running) = start(choice, 2, move || make(schema.clone())) else { return };
        let base = base_url(&running);
        in_runtime(async {
            let url = base.replace("http://", "ws://") + "/news";
            let mut request = url.into_client_request().expect("the URL is valid");
            let protocol = "graphql-transport-ws".parse().expect("the header value is valid");
            request.headers_mut().insert("sec-websocket-protocol", protocol);
            let (mut socket, response) =
                connect_async(request).await.expect("the server upgrades the connection");
            assert_eq!(response.headers()["sec-websocket-protocol"], "graphql-transport-ws");
            let say = |value: Value| tungstenite::Message::Text(Utf8Bytes::from(value.to_string()));
            socket
                .send(say(json!({"type": "connection_init"})))
                .await
                .expect("the message is sent");
            assert_eq!(hear(&mut socket).await["type"], "connection_ack", "{form}");
            let payload = json!({"query": "subscription { added }"});
            let subscribe = json!({"id": "1", "type": "subscribe", "payload": payload});
            socket.send(say(subscribe)).await.expect("the message is sent");
            let expect = |value: &str| json!({"id": "1", "type": "next", "payload": {"data": {"added": value}}});
            assert_eq!(hear(&mut socket).await, expect("listening"), "{form}");
            for name in ["hobby", "kestrel"] {
                ask(&base, ADD, json!({ "name": name })).await;
                assert_eq!(hear(&mut socket).await, expect(name), "{form}");
            }
            let complete = json!({"id": "1", "type": "complete"});
            socket.send(say(complete)).await.expect("the message is sent");
            assert_eq!(hear(&mut socket).await, json!({"id": "1", "type": "complete"}), "{form}");
            socket.close(None).await.expect("the WebSocket closes");
            while let Some(Ok(_)) = socket.next().await {}
        });
        end(running);
    }
}

/// The next text message of the server.
async fn hear<S>(socket: &mut S) -> Value
where
    S: Stream<Item = tungstenite::Result<tungstenite::Message>> + Unpin,
{
    loop {
        let message = socket
            .next()
            .await
            .expect("the WebSocket is still open")
            .expect("the message is received without an error");
        if let tungstenite::Message::Text(text) = message {
            return serde_json::from_str(&text).expect("the text is JSON");
        }
    }
}

/// Its extractor responds 400 with its own text; ours with a problem, as for every body.
fn what_is_no_graphql_is_refused(choice: DriverChoice) {
    for (form, make) in FORMS {
        let schema = schema();
        let Some(running) = start(choice, 1, move || make(schema.clone())) else { return };
        let url = format!("{}/graphql", base_url(&running));
        in_runtime(async {
            let request = client(None).post(&url).header("content-type", "application/json");
            let refused = request.body("{").send().await.expect("the server responds");
            assert_eq!(refused.status(), 400, "{form}");
            let kind = refused.headers().get("content-type").cloned();
            let is_problem = kind.is_some_and(|kind| kind == "application/problem+json");
            assert_eq!(is_problem, form == "native", "{form}");
            // A GET with the query in the URL, which its service accepts and this handler does not.
            let response = client(None).get(format!("{url}?query=%7Bbirds%7D")).send().await;
            let status = response.expect("the server responds").status();
            assert_eq!(status, if form == "native" { 405 } else { 200 }, "{form}");
        });
        end(running);
    }
}
