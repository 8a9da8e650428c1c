//! Extractors, and how requests that do not satisfy them are rejected.

use crate::axum_behaviour::cases;
use crate::axum_behaviour::compare::Case;
use crate::axum_behaviour::reply::Ask;
use axum::extract::{
    ConnectInfo, FromRef, Multipart, Path, Query, RawForm, RawPathParams, RawQuery, State,
};
use axum::http::{HeaderMap, Method, StatusCode, Version};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Extension, Form, Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

cases! {
    parameters_of_a_path_are_decoded_once,
    bytes_that_are_no_text_are_a_400,
    parameters_of_a_path_come_as_tuples_maps_and_structures,
    a_parameter_of_the_wrong_type_is_a_400_that_says_so,
    a_wrong_count_of_parameters_is_a_500,
    raw_parameters_are_told_in_order,
    numbers_of_128_bits_are_parameters,
    a_query_becomes_a_structure,
    a_query_that_does_not_fit_is_a_400,
    a_raw_query_is_what_was_written,
    a_json_document_is_read,
    json_without_its_media_type_is_a_415,
    media_types_that_end_with_json_are_json,
    json_that_is_none_is_a_400,
    json_with_more_behind_it_is_a_400,
    json_that_does_not_fit_is_a_422,
    an_absent_json_document_is_none,
    a_form_is_read_from_query_or_body,
    a_form_without_its_media_type_is_a_415,
    a_form_that_does_not_fit_is_a_400_or_422,
    a_raw_form_is_what_was_written,
    parts_of_a_multipart_form_are_read_one_by_one,
    a_multipart_form_without_a_boundary_is_a_400,
    an_absent_multipart_form_is_none,
    text_that_is_none_is_a_400,
    an_extension_that_nobody_set_is_a_500,
    a_state_may_be_a_part_of_another,
    method_version_and_fields_are_there,
    fields_that_come_twice_stay_two,
    a_refusal_may_be_caught_by_the_handler,
    the_peer_s_address_is_there,
}

#[derive(Debug, Deserialize, Serialize)]
struct Bird {
    name: String,
    #[serde(default)]
    wings: u8,
}

fn parameters_of_a_path_are_decoded_once(case: &mut Case) {
    case.serve(Router::new().route("/{name}", get(async |Path(name): Path<String>| name)));
    case.get("/one%20two").is(200, "one two");
    case.get("/a%252Fb").is(200, "a%2Fb");
    case.get("/a+b").is(200, "a+b");
    case.get("/100%").is(200, "100%");
}

fn bytes_that_are_no_text_are_a_400(case: &mut Case) {
    case.serve(Router::new().route("/{name}", get(async |Path(name): Path<String>| name)));
    case.get("/%FF").says(400, "UTF-8").has("content-type", "text/plain; charset=utf-8");
}

fn parameters_of_a_path_come_as_tuples_maps_and_structures(case: &mut Case) {
    #[derive(Deserialize)]
    struct Both {
        a: String,
        b: u32,
    }
    let router = Router::new()
        .route("/tuple/{a}/{b}", get(async |Path((a, b)): Path<(String, u32)>| format!("{a} {b}")))
        .route(
            "/map/{a}/{b}",
            get(async |Path(all): Path<HashMap<String, String>>| all["b"].clone()),
        )
        .route(
            "/list/{a}/{b}",
            get(async |Path(all): Path<Vec<(String, String)>>| format!("{all:?}")),
        )
        .route(
            "/both/{b}/{a}",
            get(async |Path(both): Path<Both>| format!("{} {}", both.a, both.b)),
        );
    case.serve(router);
    case.get("/tuple/x/7").is(200, "x 7");
    case.get("/map/x/7").is(200, "7");
    case.get("/list/x/7").is(200, r#"[("a", "x"), ("b", "7")]"#);
    case.get("/both/7/x").is(200, "x 7");
}

fn a_parameter_of_the_wrong_type_is_a_400_that_says_so(case: &mut Case) {
    let router = Router::new()
        .route("/one/{id}", get(async |Path(id): Path<u8>| id.to_string()))
        .route("/two/{a}/{b}", get(async |Path((_, b)): Path<(String, u8)>| b.to_string()));
    case.serve(router);
    case.get("/one/7").is(200, "7");
    case.get("/one/x").says(400, "Cannot parse");
    case.get("/one/256").says(400, "u8");
    case.get("/two/x/y").says(400, "Cannot parse");
}

fn a_wrong_count_of_parameters_is_a_500(case: &mut Case) {
    let handler = get(async |Path((a, _)): Path<(String, String)>| a);
    case.serve(Router::new().route("/{a}", handler));
    case.get("/x").says(500, "Wrong number of path arguments");
}

fn raw_parameters_are_told_in_order(case: &mut Case) {
    let handler = async |parameters: RawPathParams| {
        parameters.iter().map(|(name, value)| format!("{name}={value};")).collect::<String>()
    };
    case.serve(Router::new().route("/{b}/{a}", get(handler)));
    case.get("/1%202/x").is(200, "b=1 2;a=x;");
}

fn numbers_of_128_bits_are_parameters(case: &mut Case) {
    case.serve(Router::new().route("/{n}", get(async |Path(n): Path<u128>| n.to_string())));
    let most = u128::MAX.to_string();
    case.get(&format!("/{most}")).is(200, &most);
}

fn a_query_becomes_a_structure(case: &mut Case) {
    let bird = async |Query(bird): Query<Bird>| Json(bird);
    let all = async |Query(all): Query<Vec<(String, String)>>| format!("{all:?}");
    case.serve(Router::new().route("/bird", get(bird)).route("/all", get(all)));
    case.get("/bird?name=A%20B+C&wings=2").is(200, r#"{"name":"A B C","wings":2}"#);
    case.get("/bird?name=").is(200, r#"{"name":"","wings":0}"#);
    case.get("/all?a=1&a=2&b").is(200, r#"[("a", "1"), ("a", "2"), ("b", "")]"#);
    case.get("/all").is(200, "[]");
}

fn a_query_that_does_not_fit_is_a_400(case: &mut Case) {
    case.serve(Router::new().route("/", get(async |Query(bird): Query<Bird>| bird.name)));
    case.get("/").says(400, "missing field `name`");
    case.get("/?name=a&wings=x").says(400, "wings");
}

fn a_raw_query_is_what_was_written(case: &mut Case) {
    let handler = async |RawQuery(query): RawQuery| format!("{query:?}");
    case.serve(Router::new().route("/", get(handler)));
    case.get("/?a=%20&b").is(200, r#"Some("a=%20&b")"#);
    case.get("/?").is(200, r#"Some("")"#);
    case.get("/").is(200, "None");
}

fn birds() -> Router {
    Router::new().route("/", post(async |Json(bird): Json<Bird>| Json(bird)))
}

const JSON: &str = "application/json";

fn a_json_document_is_read(case: &mut Case) {
    case.serve(birds());
    let reply = case.post_as(JSON, "/", r#"{"name": "Ada", "wings": 2}"#);
    reply.is(200, r#"{"name":"Ada","wings":2}"#).has("content-type", JSON);
}

fn json_without_its_media_type_is_a_415(case: &mut Case) {
    case.serve(birds());
    case.post("/", "{}").says(415, "Content-Type: application/json");
    case.post_as("text/plain", "/", "{}").says(415, "application/json");
    case.post_as("jason", "/", "{}").says(415, "application/json");
}

fn media_types_that_end_with_json_are_json(case: &mut Case) {
    case.serve(birds());
    for kind in
        ["application/json; charset=utf-8", "application/cloudevents+json", "APPLICATION/JSON"]
    {
        case.post_as(kind, "/", r#"{"name":"a"}"#).is(200, r#"{"name":"a","wings":0}"#);
    }
    case.post_as("text/json", "/", r#"{"name":"a"}"#).says(415, "");
}

fn json_that_is_none_is_a_400(case: &mut Case) {
    case.serve(birds());
    case.post_as(JSON, "/", "{").says(400, "Failed to parse the request body as JSON");
    case.post_as(JSON, "/", "").says(400, "EOF");
}

fn json_with_more_behind_it_is_a_400(case: &mut Case) {
    case.serve(birds());
    case.post_as(JSON, "/", r#"{"name":"a"}x"#).says(400, "trailing characters");
}

fn json_that_does_not_fit_is_a_422(case: &mut Case) {
    case.serve(birds());
    case.post_as(JSON, "/", r#"{"wings":2}"#).says(422, "missing field `name`");
    case.post_as(JSON, "/", r#"{"name":"a","wings":-1}"#).says(422, "wings: invalid value");
}

fn an_absent_json_document_is_none(case: &mut Case) {
    let handler = async |json: Option<Json<Value>>| format!("{}", json.is_some());
    case.serve(Router::new().route("/", post(handler)));
    case.ask("POST", "/").is(200, "false");
    case.post_as(JSON, "/", "1").is(200, "true");
    case.post_as(JSON, "/", "{").says(400, "");
    case.post_as("text/plain", "/", "1").says(415, "");
}

const FORM: &str = "application/x-www-form-urlencoded";

fn a_form_is_read_from_query_or_body(case: &mut Case) {
    let handler = || async |Form(bird): Form<Bird>| format!("{} {}", bird.name, bird.wings);
    case.serve(Router::new().route("/", get(handler()).post(handler())));
    case.get("/?name=A+B&wings=2").is(200, "A B 2");
    case.post_as(FORM, "/", "wings=3&name=%C3%A9").is(200, "é 3");
}

fn a_form_without_its_media_type_is_a_415(case: &mut Case) {
    case.serve(Router::new().route("/", post(async |Form(bird): Form<Bird>| bird.name)));
    case.post("/", "name=a").says(415, "application/x-www-form-urlencoded");
    case.post_as(JSON, "/", "name=a").says(415, "application/x-www-form-urlencoded");
}

fn a_form_that_does_not_fit_is_a_400_or_422(case: &mut Case) {
    let handler = || async |Form(bird): Form<Bird>| bird.name;
    case.serve(Router::new().route("/", get(handler()).post(handler())));
    case.get("/?wings=1").says(400, "missing field `name`");
    case.post_as(FORM, "/", "name=a&wings=x").says(422, "wings");
}

fn a_raw_form_is_what_was_written(case: &mut Case) {
    let handler = || async |RawForm(bytes): RawForm| bytes;
    case.serve(Router::new().route("/", get(handler()).post(handler())));
    case.get("/?a=%20").is(200, "a=%20");
    case.post_as(FORM, "/", "b=%20&b").is(200, "b=%20&b");
    case.post("/", "b").says(415, "");
}

const MULTIPART: &str = "multipart/form-data; boundary=XX";
const PARTS: &str = "--XX\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\none\r\n\
    --XX\r\nContent-Disposition: form-data; name=\"b\"; filename=\"b.txt\"\r\n\
    Content-Type: text/plain\r\n\r\ntwo\nlines\r\n--XX--\r\n";

async fn parts(mut form: Multipart) -> axum::response::Result<String> {
    let mut text = String::new();
    while let Some(part) = form.next_field().await? {
        let name = part.name().map(str::to_owned);
        let (file, kind) =
            (part.file_name().map(str::to_owned), part.content_type().map(str::to_owned));
        text += &format!("{name:?} {file:?} {kind:?} {:?};", part.text().await?);
    }
    Ok(text)
}

fn parts_of_a_multipart_form_are_read_one_by_one(case: &mut Case) {
    case.serve(Router::new().route("/", post(parts)));
    let expected =
        r#"Some("a") None None "one";Some("b") Some("b.txt") Some("text/plain") "two\nlines";"#;
    case.post_as(MULTIPART, "/", PARTS).is(200, expected);
    let chunked = Ask::new("POST", "/").field("content-type", MULTIPART).chunked(PARTS, 7);
    case.send(&chunked).is(200, expected);
    let broken = PARTS.trim_end().trim_end_matches("XX--");
    case.post_as(MULTIPART, "/", broken).says(400, "incomplete data");
}

fn a_multipart_form_without_a_boundary_is_a_400(case: &mut Case) {
    case.serve(Router::new().route("/", post(parts)));
    case.post_as("multipart/form-data", "/", PARTS).says(400, "boundary");
    case.post_as(JSON, "/", PARTS).says(400, "boundary");
    case.post("/", PARTS).says(400, "boundary");
}

fn an_absent_multipart_form_is_none(case: &mut Case) {
    let handler = async |form: Option<Multipart>| format!("{}", form.is_some());
    case.serve(Router::new().route("/", post(handler)));
    case.ask("POST", "/").is(200, "false");
    case.post_as(MULTIPART, "/", PARTS).is(200, "true");
}

fn text_that_is_none_is_a_400(case: &mut Case) {
    case.serve(Router::new().route("/", post(async |text: String| text)));
    case.post("/", "é").is(200, "é");
    let ask = Ask::new("POST", "/").body(b"\xff");
    case.send(&ask).says(400, "UTF-8");
}

fn an_extension_that_nobody_set_is_a_500(case: &mut Case) {
    #[derive(Clone)]
    struct Absent;
    let router = Router::new()
        .route("/there", get(async |Extension(number): Extension<u32>| number.to_string()))
        .route("/absent", get(async |_: Extension<Absent>| "never"))
        .route(
            "/option",
            get(async |absent: Option<Extension<Absent>>| absent.is_some().to_string()),
        );
    case.serve(router.layer(Extension(7_u32)));
    case.get("/there").is(200, "7");
    case.get("/absent").says(500, "Missing request extension");
    case.get("/option").is(200, "false");
}

fn a_state_may_be_a_part_of_another(case: &mut Case) {
    #[derive(Clone)]
    struct Whole {
        name: &'static str,
        numbers: Arc<[u32]>,
    }
    impl FromRef<Whole> for Arc<[u32]> {
        fn from_ref(whole: &Whole) -> Self {
            whole.numbers.clone()
        }
    }
    let handler = async |State(whole): State<Whole>, State(numbers): State<Arc<[u32]>>| {
        format!("{} {}", whole.name, numbers[1])
    };
    let whole = Whole { name: "both", numbers: Arc::new([1, 2]) };
    case.serve(Router::new().route("/", get(handler)).with_state(whole));
    case.get("/").is(200, "both 2");
}

fn method_version_and_fields_are_there(case: &mut Case) {
    let handler = async |method: Method, version: Version, fields: HeaderMap| {
        let mut names: Vec<_> =
            fields.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
        names.sort();
        format!("{method} {version:?} {}", names.join(" "))
    };
    case.serve(Router::new().route("/", get(handler)));
    let ask = Ask::new("GET", "/").field("X-Mixed-Case", " a  b ").field("accept", "*/*");
    let expected = r#"GET HTTP/1.1 accept="*/*" host="a.example" x-mixed-case="a  b""#;
    case.send(&ask).is(200, expected);
}

fn fields_that_come_twice_stay_two(case: &mut Case) {
    let handler = async |fields: HeaderMap| {
        let values: Vec<_> = fields.get_all("x-a").iter().collect();
        format!("{values:?} {}", fields.len())
    };
    case.serve(Router::new().route("/", get(handler)));
    let ask = Ask::new("GET", "/").field("x-a", "1").field("x-b", "2").field("X-A", "3, 4");
    case.send(&ask).is(200, r#"["1", "3, 4"] 4"#);
}

fn a_refusal_may_be_caught_by_the_handler(case: &mut Case) {
    use axum::extract::rejection::JsonRejection;
    let handler = async |json: Result<Json<Bird>, JsonRejection>| match json {
        Ok(Json(bird)) => bird.name.into_response(),
        Err(refusal) => (StatusCode::IM_A_TEAPOT, refusal.status().to_string()).into_response(),
    };
    case.serve(Router::new().route("/", post(handler)));
    case.post_as(JSON, "/", r#"{"name":"a"}"#).is(200, "a");
    case.post("/", "").is(418, "415 Unsupported Media Type");
    case.post_as(JSON, "/", "x").is(418, "400 Bad Request");
}

fn the_peer_s_address_is_there(case: &mut Case) {
    let handler = async |ConnectInfo(peer): ConnectInfo<SocketAddr>| peer.to_string();
    let router = || Router::new().route("/", get(handler));
    case.serve_with_peers(router());
    let same = case.each(|server| {
        use std::io::Write;
        let mut stream = server.connect();
        let own = stream.local_addr().expect("the socket is connected").to_string();
        stream.write_all(&Ask::new("GET", "/").bytes()).expect("the server reads");
        let reply =
            crate::axum_behaviour::reply::Reply::read(&mut stream, false).expect("a response");
        (reply.text() == own).to_string()
    });
    assert_eq!(same, "true");
    case.serve(router());
    case.get("/").says(500, "Missing request extension");
}
