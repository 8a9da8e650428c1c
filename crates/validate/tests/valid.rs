//! Values that break rules, and the pointers that clients get.

use garde::Validate;
use http::Method;
use peregrine_multipart::{MultipartForm, UploadedFile};
use peregrine_validate::{ERRORS_MAX, FieldNames, Valid, ValidationErrors};
use peregrine_web::extract::{Form, Json, Path, Query};
use peregrine_web::testing::{TestClient, TestResponse};
use peregrine_web::{App, Problem};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

#[derive(Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase")]
struct Order {
    #[garde(length(min = 2))]
    customer_name: String,
    #[serde(rename = "e-mail")]
    #[garde(contains("@"))]
    email: Option<String>,
    #[garde(dive)]
    #[serde(default)]
    order_lines: Vec<Line>,
    #[garde(dive)]
    #[serde(default)]
    by_place: BTreeMap<String, Line>,
    #[garde(dive)]
    payment: Option<Payment>,
    #[garde(dive)]
    code: Option<Code>,
    #[garde(dive)]
    #[serde(flatten)]
    address: Option<Address>,
}

#[derive(Debug, Deserialize, Validate)]
#[serde(rename_all = "kebab-case")]
struct Line {
    #[garde(range(min = 1, max = 10))]
    item_count: u32,
    #[serde(rename = "type", default)]
    #[garde(length(max = 3))]
    kind: String,
}

#[derive(Debug, Deserialize, Validate)]
#[serde(rename_all = "snake_case")]
enum Payment {
    CreditCard {
        #[serde(rename = "cardNumber")]
        #[garde(length(min = 4))]
        number: String,
    },
    Voucher(#[garde(range(min = 1))] u32),
}

#[derive(Debug, Deserialize, Validate)]
struct Code(#[garde(ascii)] String);

#[derive(Debug, Deserialize, Validate)]
struct Address {
    #[serde(rename = "ZIP")]
    #[garde(length(min = 5))]
    zip: String,
}

/// The pointers and texts of a problem with status 422.
fn errors(response: &TestResponse) -> Vec<(String, String)> {
    let problem: Value = response.json();
    assert_eq!(response.status(), 422, "{problem}");
    assert_eq!(problem["type"], "/problems/validation-failed");
    let errors = problem["errors"].as_array().expect("a list").iter();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    errors.map(|error| (text(&error["pointer"]), text(&error["detail"]))).collect()
}

fn pointers(response: &TestResponse) -> Vec<String> {
    errors(response).into_iter().map(|(pointer, _)| pointer).collect()
}

async fn order(Valid(Json(order)): Valid<Json<Order>>) -> String {
    order.customer_name
}

fn send(client: &TestClient, order: &Value) -> TestResponse {
    client.post("/").json(order).send_blocking()
}

#[test]
fn a_pointer_refers_to_the_value_in_the_document() {
    let client = App::new().post("/", order).test();
    let line = |count: u32| json!({ "item-count": count });
    let valid = json!({ "customerName": "ada", "orderLines": [line(1)], "code": "x" });
    assert_eq!(send(&client, &valid).text(), "ada");
    for (member, value, pointer) in [
        ("customerName", json!("a"), "/customerName"),
        ("e-mail", json!("nobody"), "/e-mail"),
        ("orderLines", json!([line(1), line(11)]), "/orderLines/1/item-count"),
        ("byPlace", json!({ "a/b~c": line(0) }), "/byPlace/a~1b~0c/item-count"),
        ("byPlace", json!({ "item-count": line(0) }), "/byPlace/item-count/item-count"),
        ("code", json!("ü"), "/code"),
        ("ZIP", json!("1"), "/ZIP"),
    ] {
        let mut invalid = valid.clone();
        invalid[member] = value;
        let response = send(&client, &invalid);
        assert_eq!(pointers(&response), [pointer], "{invalid}");
        assert!(invalid.pointer(pointer).is_some(), "{pointer} does not exist in the document");
        assert_eq!(response.json::<Value>()["in"], "body");
    }
}

#[test]
fn enum_variants_are_in_the_pointer_if_they_are_in_the_document() {
    #[derive(Debug, Deserialize, Validate)]
    #[garde(transparent)]
    struct Wrapper(#[garde(dive)] Payment);

    let client = App::new()
        .post("/", |_: Valid<Json<Payment>>| "paid")
        .post("/just", |_: Valid<Json<Wrapper>>| "paid")
        .test();
    for (payment, pointer, prefix) in [
        (json!({ "voucher": 0 }), "/voucher", None),
        // `cardNumber` does not match `number`, so the pointer stops before it.
        (json!({ "credit_card": { "cardNumber": "1" } }), "/credit_card", Some("number: ")),
    ] {
        for target in ["/", "/just"] {
            let response = client.post(target).json(&payment).send_blocking();
            let errors = errors(&response);
            assert_eq!((errors.len(), &*errors[0].0), (1, pointer));
            assert!(prefix.is_none_or(|prefix| errors[0].1.starts_with(prefix)), "{errors:?}");
        }
    }
    assert_eq!(client.post("/").json(&json!({ "voucher": 1 })).send_blocking().text(), "paid");
}

#[test]
fn field_names_sets_names_that_cannot_be_derived() {
    let invalid =
        json!({ "customerName": "ada", "orderLines": [{ "item-count": 1, "type": "long" }] });
    let response = send(&App::new().post("/", order).test(), &invalid);
    let [(pointer, detail)] = &errors(&response)[..] else { panic!("one error") };
    assert_eq!(pointer, "/orderLines/0", "better incomplete than wrong");
    assert!(detail.starts_with("kind: "), "{detail}");
    let names = FieldNames::new().rename("Line", "kind", "type");
    let client = App::new().state(names).post("/", order).test();
    assert_eq!(pointers(&send(&client, &invalid)), ["/orderLines/0/type"]);
}

#[test]
fn every_broken_rule_is_listed_up_to_a_limit() {
    let client = App::new().post("/", order).test();
    let two = json!({ "customerName": "a", "e-mail": "b" });
    let response = send(&client, &two);
    assert_eq!(pointers(&response), ["/customerName", "/e-mail"]);
    assert!(response.json::<Value>()["detail"].as_str().expect("text").contains("2 values"));
    let lines = vec![json!({ "item-count": 0 }); ERRORS_MAX + 3];
    let response = send(&client, &json!({ "customerName": "ada", "orderLines": lines }));
    assert_eq!(pointers(&response).len(), ERRORS_MAX);
    assert_eq!(response.json::<Value>()["more"], 3);
    let long = "k".repeat(10_000);
    let response =
        send(&client, &json!({ "customerName": "ada", "byPlace": { long: { "item-count": 0 } } }));
    assert!(response.text().len() < 1000, "client data is truncated");
}

/// Counts log events.
#[derive(Clone, Default)]
struct Log(Arc<AtomicUsize>);

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn names_are_looked_up_only_for_listed_errors() {
    let lines = vec![json!({ "item-count": 1, "type": "long" }); 10 * ERRORS_MAX];
    let invalid = json!({ "customerName": "ada", "orderLines": lines });
    let client = App::new().post("/", order).test();
    let log = Log::default();
    let response = tracing::subscriber::with_default(log.clone(), || {
        send(&client, &invalid);
        // Another test may have reached these events first, on a thread without a subscriber;
        // `tracing` then caches that no subscriber is interested.
        tracing::callsite::rebuild_interest_cache();
        log.0.store(0, Ordering::Relaxed);
        send(&client, &invalid)
    });
    assert_eq!(response.json::<Value>()["more"], 9 * ERRORS_MAX);
    let lookups = log.0.load(Ordering::Relaxed);
    assert!((1..=ERRORS_MAX).contains(&lookups), "{lookups} names were looked up");
}

#[test]
fn a_numeric_key_is_part_of_the_pointer() {
    #[derive(Deserialize, Validate)]
    struct Shelf {
        #[garde(dive)]
        by_number: BTreeMap<usize, Line>,
    }
    async fn fill(_: Valid<Json<Shelf>>) {}
    let client = App::new().post("/", fill).test();
    let shelf = json!({ "by_number": { "3": { "item-count": 1 }, "7": { "item-count": 0 } } });
    let request = client.post("/").json(&shelf);
    assert_eq!(pointers(&request.send_blocking()), ["/by_number/7/item-count"]);
}

#[test]
fn problems_of_the_inner_extractor_come_first() {
    let client = App::new().post("/", order).test();
    assert_eq!(client.post("/").send_blocking().status(), 400);
    assert_eq!(client.post("/").body("{}").send_blocking().status(), 415);
    let problem: Value = send(&client, &json!({ "customerName": 1 })).json();
    assert_eq!(problem["type"], "/problems/unexpected-value");
    let maybe = |body: Option<Valid<Json<Order>>>| body.is_some().to_string();
    let client = App::new().post("/", maybe).test();
    assert_eq!(client.post("/").send_blocking().text(), "false");
    assert_eq!(send(&client, &json!({ "customerName": "ada" })).text(), "true");
    assert_eq!(send(&client, &json!({ "customerName": "a" })).status(), 422);
}

#[derive(Debug, Deserialize, Validate)]
#[serde(rename_all = "kebab-case")]
struct Search {
    #[garde(length(min = 2))]
    search_text: String,
    #[garde(length(max = 2), inner(length(min = 1)))]
    #[serde(default, rename = "tag")]
    tag: Vec<String>,
}

#[test]
fn queries_forms_and_paths_are_validated() {
    async fn query(Valid(Query(search)): Valid<Query<Search>>) -> String {
        search.search_text
    }
    async fn form(search: Valid<Form<Search>>) -> String {
        search.search_text.clone()
    }
    async fn path(Valid(Path(search)): Valid<Path<Search>>) -> String {
        search.search_text
    }
    let client = App::new()
        .get("/", query)
        .on(Method::POST, "/", form)
        .get("/form", form)
        .get("/path/{search-text}", path)
        .test();
    let fields = [("content-type", "application/x-www-form-urlencoded")];
    let post = |body: &'static str| {
        client.post("/").header(fields[0].0, fields[0].1).body(body).send_blocking()
    };
    assert_eq!(client.get("/?search-text=ab&tag=x").send_blocking().text(), "ab");
    assert_eq!(post("search-text=ab").text(), "ab");
    assert_eq!(client.get("/path/ab").send_blocking().text(), "ab");
    for (response, location) in [
        (client.get("/?search-text=a&tag=x&tag=").send_blocking(), "query"),
        (client.get("/form?search-text=a&tag=x&tag=").send_blocking(), "query"),
        (post("search-text=a&tag=x&tag="), "body"),
    ] {
        assert_eq!(pointers(&response), ["/search-text", "/tag/1"], "{location}");
        assert_eq!(response.json::<Value>()["in"], location);
    }
    let response = client.get("/path/a").send_blocking();
    assert_eq!(pointers(&response), ["/search-text"]);
    assert_eq!(response.json::<Value>()["in"], "path");
    assert_eq!(client.get("/").send_blocking().status(), 400);
}

#[test]
fn multipart_forms_are_validated() {
    fn is_small(file: &UploadedFile, _: &()) -> garde::Result {
        if file.len() > 3 { Err(garde::Error::new("larger than 3 bytes")) } else { Ok(()) }
    }
    #[derive(Deserialize, Validate)]
    #[serde(rename_all = "camelCase")]
    struct UploadForm {
        #[garde(custom(is_small))]
        the_file: UploadedFile,
    }
    let client = App::new().post("/", |_: Valid<MultipartForm<UploadForm>>| "kept").test();
    for (content, status) in [("123", 200), ("1234", 422)] {
        let form = format!(
            "--b\r\nContent-Disposition: form-data; name=theFile; filename=f\r\n\r\n{content}\r\n--b--"
        );
        let request = client.post("/").header("content-type", "multipart/form-data; boundary=b");
        let response = request.body(form).send_blocking();
        assert_eq!(response.status(), status);
        if status == 422 {
            let expected = ("/theFile".to_owned(), "larger than 3 bytes".to_owned());
            assert_eq!(errors(&response), [expected]);
        }
    }
}

#[test]
fn no_float_outside_a_range_is_accepted() {
    #[derive(Deserialize, Validate)]
    struct Price {
        #[garde(range(min = 0.0, max = 100.0))]
        price: f64,
        #[garde(inner(range(min = 0.0)))]
        discount: Option<f32>,
    }
    let client = App::new()
        .get("/query", |_: Valid<Query<Price>>| "kept")
        .get("/form", |_: Valid<Form<Price>>| "kept")
        .post("/form", |_: Valid<Form<Price>>| "kept")
        .post("/files", |_: Valid<MultipartForm<Price>>| "kept")
        .post("/json", |_: Valid<Json<Price>>| "kept")
        .get("/path/{price}/{discount}", |_: Valid<Path<Price>>| "kept")
        .get("/typed/{price:f64}/{discount:f32}", |_: Valid<Path<Price>>| "kept")
        .test();
    let statuses = |price: &str, discount: &str| {
        let pairs = format!("price={price}&discount={discount}");
        let json = format!("{{\"price\":{price},\"discount\":{discount}}}");
        let field = |name: &str, value: &str| {
            format!("--b\r\nContent-Disposition: form-data; name={name}\r\n\r\n{value}\r\n")
        };
        let files = [field("price", price), field("discount", discount), "--b--".into()].concat();
        let post = |path: &str, content_type: &str, body: String| {
            client.post(path).header("content-type", content_type).body(body).send_blocking()
        };
        [
            client.get(&format!("/query?{pairs}")).send_blocking(),
            client.get(&format!("/form?{pairs}")).send_blocking(),
            post("/form", "application/x-www-form-urlencoded", pairs),
            post("/files", "multipart/form-data; boundary=b", files),
            post("/json", "application/json", json),
            client.get(&format!("/path/{price}/{discount}")).send_blocking(),
            client.get(&format!("/typed/{price}/{discount}")).send_blocking(),
        ]
        .map(|response| response.status().as_u16())
    };
    for number in ["0", "0.5", "1e2"] {
        assert_eq!(statuses(number, number), [200; 7], "{number}");
    }
    for number in ["-1", "-1e-9"] {
        assert_eq!(statuses(number, "1"), [422; 7], "{number}");
        assert_eq!(statuses("1", number), [422; 7], "{number}");
    }
    for number in ["NaN", "nan", "-NaN", "inf", "-inf", "Infinity", "-infinity", "1e999"] {
        // Not a number in any format.
        let rejected = [400, 400, 422, 422, 400, 400, 404];
        assert_eq!(statuses(number, "1"), rejected, "{number}");
        assert_eq!(statuses("1", number), rejected, "{number}");
        assert_eq!(statuses("x", "1"), rejected);
    }
}

#[test]
fn rules_can_use_application_state() {
    #[derive(Default)]
    struct Taken(Vec<&'static str>);
    fn is_free(name: &str, taken: &Taken) -> garde::Result {
        if taken.0.contains(&name) { Err(garde::Error::new("is taken")) } else { Ok(()) }
    }
    #[derive(Deserialize, Validate)]
    #[garde(context(Taken))]
    struct User {
        #[garde(custom(is_free))]
        name: String,
    }
    async fn create(Valid(Json(user)): Valid<Json<User>>) -> String {
        user.name
    }
    let ada = json!({ "name": "ada" });
    assert_eq!(send(&App::new().post("/", create).test(), &ada).text(), "ada");
    let client = App::new().state(Taken(vec!["ada"])).post("/", create).test();
    assert_eq!(errors(&send(&client, &ada)), [("/name".to_owned(), "is taken".to_owned())]);
}

#[test]
fn a_handler_can_report_validation_errors() {
    async fn create(Json(name): Json<String>) -> Result<String, Problem> {
        let invalid = ValidationErrors::in_body();
        assert!(invalid.is_empty());
        Err(invalid.add("", format!("{name} is taken")).into())
    }
    let client = App::new().post("/", create).test();
    let response = client.post("/").json("ada").send_blocking();
    assert_eq!(errors(&response), [(String::new(), "ada is taken".to_owned())]);
    assert_eq!(response.json::<Value>()["detail"], "body: ada is taken");
}
