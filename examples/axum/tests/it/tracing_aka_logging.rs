use crate::harness::{Host, wait_until};
use crate::log;
use futures_util::future::join_all;
use peregrine_axum_examples::tracing_aka_logging::app;

pub(crate) async fn a_request_s_events_are_in_its_span_in_order(host: Host) {
    log::begin();
    let server = host.serve(app());
    let path = |number: usize| format!("/birds/wren-{:?}-{number}", host.engine);
    let server = &server;
    join_all((0..6).map(async |number| {
        let answer = server.get(&path(number)).await;
        assert_eq!(answer.brief(), (200, format!("a {}", &path(number)[7..]).as_str()));
    }))
    .await;
    for number in 0..6 {
        let mark = format!("{} ", path(number));
        wait_until("the response is logged", async || log::lines(&mark).len() >= 5).await;
        let span = format!("request{{method=GET uri={mark}route=\"/birds/{{name}}\"");
        let bytes = path(number).len() - 5;
        let expected = [
            format!("DEBUG {span}}}: began"),
            format!("INFO {span}}}: looking for it"),
            format!("INFO {span}}}: found it"),
            format!("DEBUG {span} status=200}}: answered"),
            format!("DEBUG {span} status=200}}: sent a piece bytes={bytes}"),
        ];
        assert_eq!(log::lines(&mark), expected);
    }
}

pub(crate) async fn a_failure_is_reported_as_one(host: Host) {
    log::begin();
    let server = host.serve(app());
    let mark = format!("/broken/{:?}", host.engine);
    assert_eq!(server.get(&mark).await.brief(), (500, ""));
    let span = format!("request{{method=GET uri={mark} route=\"/broken/{{name}}\"");
    let expected = [
        format!("DEBUG {span}}}: began"),
        format!("DEBUG {span} status=500}}: answered"),
        format!("ERROR {span} status=500}}: failed class=Status code: 500 Internal Server Error"),
    ];
    assert_eq!(log::lines(&mark), expected);
    server.end().await;
}
