use crate::harness::Host;
use peregrine_axum_examples::dependency_injection::app;

pub(crate) async fn both_ways_lead_to_one_store(host: Host) {
    let server = host.serve(app());
    let kind = "application/json";
    let made = server.post("/object/birds", kind, r#"{"name":"wren"}"#).await;
    assert_eq!(made.brief(), (200, r#"{"id":0,"name":"wren"}"#));
    let made = server.post("/type/birds", kind, r#"{"name":"rook"}"#).await;
    assert_eq!(made.brief(), (200, r#"{"id":1,"name":"rook"}"#));
    for way in ["object", "type"] {
        let found = async |id: u32| server.get(&format!("/{way}/birds/{id}")).await;
        assert_eq!(found(0).await.brief(), (200, r#"{"id":0,"name":"wren"}"#));
        assert_eq!(found(1).await.brief(), (200, r#"{"id":1,"name":"rook"}"#));
        assert_eq!(found(2).await.brief(), (404, ""));
    }
    server.end().await;
}
