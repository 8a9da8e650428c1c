use crate::harness::{Host, Served, Socket, socket, wait_until};
use futures_util::{SinkExt, StreamExt};
use peregrine_axum_examples::chat::app;
use tokio_tungstenite::tungstenite::Message;

struct Guest(Socket);

impl Guest {
    async fn enter(server: &Served) -> Self {
        Self(socket(server, "/chat", None).await)
    }

    async fn say(&mut self, text: &str) {
        self.0.send(Message::text(text)).await.expect("the room is open");
    }

    async fn hear(&mut self) -> String {
        let message = self.0.next().await.expect("the room is open").expect("a valid frame");
        message.into_text().expect("a text message").to_string()
    }
}

pub(crate) async fn everybody_hears_everybody_in_the_same_order(host: Host) {
    let server = host.serve(app());
    let mut ada = Guest::enter(&server).await;
    ada.say("ada").await;
    assert_eq!(ada.hear().await, "ada came");
    let mut bob = Guest::enter(&server).await;
    bob.say("ada").await;
    assert_eq!(bob.hear().await, "that name is taken");
    bob.say("bob").await;
    assert_eq!((ada.hear().await, bob.hear().await), ("bob came".into(), "bob came".into()));
    assert_eq!(server.get("/names").await.text(), "ada\nbob\n");

    for number in 0..20 {
        ada.say(&format!("a{number}")).await;
        bob.say(&format!("b{number}")).await;
    }
    let (mut to_ada, mut to_bob) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        to_ada.push(ada.hear().await);
        to_bob.push(bob.hear().await);
    }
    assert_eq!(to_ada, to_bob);
    for (name, letter) in [("ada", 'a'), ("bob", 'b')] {
        let said: Vec<_> = to_ada.iter().filter(|text| text.starts_with(name)).cloned().collect();
        let all: Vec<_> = (0..20).map(|number| format!("{name}: {letter}{number}")).collect();
        assert_eq!(said, all);
    }

    bob.0.close(None).await.expect("the room is open");
    while let Some(Ok(_)) = bob.0.next().await {}
    assert_eq!(ada.hear().await, "bob left");
    assert_eq!(server.get("/names").await.text(), "ada\n");
    drop(ada);
    wait_until("the room is empty", async || server.get("/names").await.text().is_empty()).await;
    server.end().await;
}
