//! A fully described API: an OpenAPI document generated from the handlers' types, a page that
//! displays it, and the document as a file.
//!
//! `openapi --document` prints the document; `contract diff OLD NEW` lists the changes between two
//! documents that break clients.
#![forbid(unsafe_code)]

use peregrine::multipart::{MultipartForm, UploadedFile};
use peregrine::openapi::{
    ApiScope, DescribeExt, OpenApi, OpenApiExt, Operation, OperationInput, SecurityScheme,
    WithStatus, api_scope,
};
use peregrine::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use subtle::ConstantTimeEq;

/// An observation of birds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Sighting {
    id: u64,
    #[serde(flatten)]
    seen: NewSighting,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
struct NewSighting {
    /// The kind of bird.
    bird: Bird,
    /// The place, in words.
    place: String,
    /// The number of birds.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    count: u32,
}

fn one() -> u32 {
    1
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Bird {
    Hobby,
    Kestrel,
    Peregrine,
}

#[derive(Deserialize, JsonSchema)]
struct Filter {
    /// Only sightings of this bird.
    bird: Option<Bird>,
    /// The maximum number of sightings to return.
    #[serde(default = "hundred")]
    limit: usize,
}

fn hundred() -> usize {
    100
}

#[derive(Deserialize, JsonSchema)]
struct Photo {
    /// The name of the photographer.
    author: String,
    file: UploadedFile,
}

/// The result of an upload.
#[derive(Serialize, JsonSchema)]
struct Stored {
    author: String,
    bytes: u64,
}

/// The state that all workers share.
#[derive(Clone, Default)]
struct Sightings(Arc<Mutex<BTreeMap<u64, Sighting>>>);

impl Sightings {
    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<u64, Sighting>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A user who may change sightings: an extractor that also documents its requirement.
struct Warden;

impl FromRequestParts for Warden {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        let token =
            parts.head.header("authorization").and_then(|text| text.strip_prefix("Bearer "));
        if token.is_some_and(|token| token.as_bytes().ct_eq(b"let me in").into()) {
            return Ok(Self);
        }
        Err(Problem::new(StatusCode::UNAUTHORIZED, "no-warden", "Send a warden's token."))
    }
}

impl OperationInput for Warden {
    fn describe(operation: &mut Operation) {
        operation.security("warden").problem(401, "The token is missing or wrong.");
    }
}

fn unknown(id: u64) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "unknown-sighting", format!("There is no sighting {id}."))
}

async fn list(Query(filter): Query<Filter>, sightings: StateRef<Sightings>) -> Json<Vec<Sighting>> {
    let is_wanted = |one: &&Sighting| filter.bird.is_none_or(|bird| bird == one.seen.bird);
    Json(sightings.with(|all| all.values().filter(is_wanted).take(filter.limit).cloned().collect()))
}

async fn create(
    _: Warden,
    sightings: StateRef<Sightings>,
    Json(seen): Json<NewSighting>,
) -> WithStatus<201, Json<Sighting>> {
    WithStatus(Json(sightings.with(|all| {
        let id = all.last_key_value().map_or(1, |(last, _)| last + 1);
        let sighting = Sighting { id, seen };
        all.insert(id, sighting.clone());
        sighting
    })))
}

async fn show(
    Path(id): Path<u64>,
    sightings: StateRef<Sightings>,
) -> Result<Json<Sighting>, Problem> {
    sightings.with(|all| all.get(&id).cloned()).map(Json).ok_or_else(|| unknown(id))
}

async fn remove(
    _: Warden,
    Path(id): Path<u64>,
    sightings: StateRef<Sightings>,
) -> Result<WithStatus<204, ()>, Problem> {
    sightings.with(|all| all.remove(&id)).map(|_| WithStatus(())).ok_or_else(|| unknown(id))
}

async fn add_photo(
    Path(id): Path<u64>,
    sightings: StateRef<Sightings>,
    MultipartForm(photo): MultipartForm<Photo>,
) -> Result<Json<Stored>, Problem> {
    if !sightings.with(|all| all.contains_key(&id)) {
        return Err(unknown(id));
    }
    Ok(Json(Stored { author: photo.author, bytes: photo.file.len() }))
}

fn sightings(api: ApiScope) -> ApiScope {
    const UNKNOWN: &str = "There is no such sighting.";
    api.tag("sightings")
        .get(
            "/",
            list.named("list_sightings").describe(|it| it.summary("Sightings, the oldest first")),
        )
        .post(
            "/",
            create.named("create_sighting").describe(|it| {
                it.summary("Reports a sighting").body_example(
                    "two kestrels",
                    NewSighting {
                        bird: Bird::Kestrel,
                        place: "on the church".to_owned(),
                        count: 2,
                    },
                )
            }),
        )
        .get(
            "/{id}",
            show.named("show_sighting")
                .describe(|it| it.summary("One sighting").problem(404, UNKNOWN)),
        )
        .delete(
            "/{id}",
            remove
                .named("remove_sighting")
                .describe(|it| it.summary("Deletes a sighting").problem(404, UNKNOWN)),
        )
        .put(
            "/{id}/photo",
            add_photo
                .named("add_photo")
                .describe(|it| it.summary("Adds a photo").problem(404, UNKNOWN)),
        )
}

fn app(all: Sightings) -> App {
    let api = OpenApi::new("Sightings", "1.0.0")
        .description("Sightings of birds of prey.")
        .tag("sightings", "Sightings and their photos.")
        .security_scheme(
            "warden",
            SecurityScheme::bearer("").description("The token is `let me in`."),
        )
        .require_descriptions();
    App::new()
        .state(all)
        .scope("/sightings", api_scope(sightings))
        .get("/healthz", (|| "well").never_shed().hidden())
        .register(api)
}

const ABOUT: &str = "\
An API with an OpenAPI document generated from the handlers' types, and a page that displays it.

Try: curl 'http://localhost:8080/sightings?bird=kestrel'
     http://localhost:8080/docs   in a browser
     openapi --document   prints the document";

fn main() -> peregrine::Result<()> {
    if std::env::args().nth(1).as_deref() == Some("--document") {
        match app(Sightings::default()).openapi() {
            Ok(document) => println!("{document}"),
            Err(error) => {
                eprintln!("{error}");
                std::process::exit(1);
            }
        }
        return Ok(());
    }
    let address = peregrine_examples::address(ABOUT);
    let all = Sightings::default();
    Server::bind(address).serve(move || app(all.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_document_says_what_the_handlers_do() {
        let document = app(Sightings::default()).openapi().expect("every route is described");
        let create = document.operation("POST", "/sightings").expect("the route exists");
        assert_eq!(create["security"], json!([{ "warden": [] }]));
        assert!(create["responses"]["201"].is_object() && create["responses"]["401"].is_object());
        assert_eq!(document.undescribed(), []);
    }

    #[test]
    fn only_wardens_may_report_a_sighting() {
        let client = app(Sightings::default()).test();
        let new = json!({ "bird": "hobby", "place": "above the lake" });
        assert_eq!(client.post("/sightings").json(&new).send_blocking().status(), 401);
        let made = client
            .post("/sightings")
            .header("authorization", "Bearer let me in")
            .json(&new)
            .send_blocking();
        assert_eq!(made.status(), 201);
        assert_eq!(made.json::<Sighting>().seen.count, 1);
        assert_eq!(client.get("/sightings/1").send_blocking().json::<Sighting>().id, 1);
        assert_eq!(
            client.get("/sightings?bird=kestrel").send_blocking().json::<Vec<Sighting>>(),
            []
        );
    }
}
