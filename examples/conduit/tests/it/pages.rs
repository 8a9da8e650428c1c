use crate::harness::world;
use serde_json::json;

#[tokio::test]
async fn pages_show_articles_and_escape_what_others_wrote() {
    let world = world().await;
    let ada = world.user("a&b").await;
    let evil = "<script>alert('x')</script>";
    let article =
        json!({ "title": evil, "description": evil, "body": evil, "tagList": [evil, "a/b?c"] });
    ada.post("/api/articles", json!({ "article": article })).await.assert_status(201);
    let slug = world.get("/api/articles").await["articles"][0]["slug"]
        .as_str()
        .expect("a slug")
        .to_owned();
    let comment = json!({ "comment": { "body": evil } });
    ada.post(&format!("/api/articles/{slug}/comments"), comment).await.assert_status(201);
    for path in [
        "/".to_owned(),
        format!("/articles/{slug}"),
        "/authors/a&b".to_owned(),
        "/tags/a%2Fb%3Fc".to_owned(),
    ] {
        let response = world.client.get(&path).send().await;
        let text = response.assert_status(200).text();
        assert!(
            text.contains("&#60;script&#62;alert(&#39;x") && !text.contains(evil),
            "{path}: {text}"
        );
        assert_eq!(response.header("content-type"), Some("text/html; charset=utf-8"));
        let policy = response.header("content-security-policy").expect("a policy");
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(response.header("x-frame-options"), Some("DENY"));
        // Every link leads to an existing page.
        for link in text.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            let link = link.replace("&#38;", "&").replace("&#39;", "'");
            world.client.get(&link).send().await.assert_status(200);
        }
    }
}

#[tokio::test]
async fn lists_have_pages() {
    let world = world().await;
    let ada = world.user("ada").await;
    for number in 0..11 {
        ada.publish(&format!("number {number}"), &["t"]).await;
    }
    for path in ["/", "/authors/ada", "/tags/t"] {
        let first = world.client.get(path).send().await.text();
        assert!(
            first.contains("number 10")
                && !first.contains("number 0<")
                && first.contains("?page=2"),
            "{first}"
        );
        let second = world.client.get(&format!("{path}?page=2")).send().await.text();
        assert!(
            second.contains("number 0<")
                && second.contains("?page=1")
                && !second.contains("?page=3"),
            "{second}"
        );
    }
    for page in ["0", "4294967295"] {
        world.client.get(&format!("/?page={page}")).send().await.assert_status(200);
    }
}

#[tokio::test]
async fn what_is_not_there_is_a_page_for_browsers_and_a_document_for_programs() {
    let world = world().await;
    for path in ["/articles/none", "/authors/none", "/nowhere"] {
        let page = world.client.get(path).header("accept", "text/html,*/*").send().await;
        assert!(page.assert_status(404).text().contains("<h1>404</h1>"), "{path}");
        let document = world.client.get(path).send().await;
        assert_eq!(
            document.assert_status(404).header("content-type"),
            Some("application/problem+json")
        );
    }
    for (path, kind) in [
        ("/assets/conduit.css", "text/css; charset=utf-8"),
        ("/assets/live.js", "text/javascript; charset=utf-8"),
    ] {
        let response = world.client.get(path).send().await;
        assert_eq!(response.assert_status(200).header("content-type"), Some(kind));
    }
}
