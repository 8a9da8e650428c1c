//! The sightings of one bird. The parameter `bird` is part of the prefix that the caller chooses.

use crate::store::Store;
use peregrine::prelude::*;
use serde::Deserialize;

/// The body limit applies only to the routes of this module.
pub(crate) fn routes(scope: Scope) -> Scope {
    scope.wrap(BodyLimit::new(1 << 10)).get("/", list).post("/", add)
}

#[derive(Deserialize)]
struct Sighting {
    place: String,
}

async fn list(Path(bird): Path<String>, store: StateRef<Store>) -> Json<Vec<String>> {
    Json(store.with(|birds| birds.get(&bird).cloned().unwrap_or_default()))
}

async fn add(
    Path(bird): Path<String>,
    store: StateRef<Store>,
    Json(sighting): Json<Sighting>,
) -> StatusCode {
    store.with(|birds| birds.entry(bird).or_default().push(sighting.place));
    StatusCode::CREATED
}
