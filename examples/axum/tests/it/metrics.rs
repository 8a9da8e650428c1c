use crate::harness::{Host, answer};
use futures_util::future::join_all;
use peregrine_axum_examples::metrics::apps;
use reqwest::Method;

pub(crate) async fn a_second_server_reports_what_the_first_counted(host: Host) {
    let (public, private) = apps();
    let (public, private) = (host.serve(public), host.serve(private));
    let (public_, paths) = (&public, ["/birds/wren", "/birds/rook", "/birds/dodo", "/slow"]);
    join_all((0..40).map(async |number: usize| {
        let path = paths[number % paths.len()];
        let status = public_.get(path).await.status.as_u16();
        assert_eq!(status, if path == "/birds/dodo" { 410 } else { 200 });
    }))
    .await;
    assert_eq!(answer(public.request(Method::HEAD, "/slow")).await.status, 200);
    assert_eq!(answer(public.request(Method::PUT, "/slow")).await.status, 405);
    // A route layer does not count requests that match no route.
    assert_eq!(public.get("/metrics").await.brief(), (404, ""));
    let line = |method, path, status, count| {
        let labels = format!("method=\"{method}\",path=\"{path}\",status=\"{status}\"");
        format!("http_requests_total{{{labels}}} {count}\n")
    };
    let expected = [
        "# TYPE http_requests_total counter\n".to_owned(),
        line("GET", "/birds/{name}", 200, 20),
        line("GET", "/birds/{name}", 410, 10),
        line("GET", "/slow", 200, 10),
        line("HEAD", "/slow", 200, 1),
        line("PUT", "/slow", 405, 1),
    ];
    assert_eq!(private.get("/metrics").await.text(), expected.concat());
    public.end().await;
    private.end().await;
}
