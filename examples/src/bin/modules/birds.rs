//! Lists the birds that were sighted.

use crate::store::Store;
use peregrine::prelude::*;
use serde::Serialize;

/// The caller chooses the prefix.
pub(crate) fn routes(scope: Scope) -> Scope {
    scope.get("/", list).get("/{bird}", show)
}

#[derive(Serialize)]
struct Bird {
    sightings: usize,
}

async fn list(store: StateRef<Store>) -> Json<Vec<String>> {
    Json(store.with(|birds| birds.keys().cloned().collect()))
}

async fn show(Path(bird): Path<String>, store: StateRef<Store>) -> Result<Json<Bird>, Problem> {
    let sightings = store.with(|birds| birds.get(&bird).map(Vec::len));
    sightings.map(|sightings| Json(Bird { sightings })).ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "unknown-bird", format!("No {bird} was seen."))
    })
}
