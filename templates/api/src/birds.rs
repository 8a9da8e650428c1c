//! Birds: one subject of the API, with its routes, types and handlers.

use garde::Validate;
use peregrine::openapi::{Api, Status};
use peregrine::prelude::*;
use peregrine::validate::Valid;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A bird that somebody saw.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema, Validate)]
pub struct Bird {
    /// What people call it.
    #[garde(length(min = 1, max = 100))]
    name: String,
    /// How far its wings reach, in centimetres.
    #[garde(range(min = 1, max = 400))]
    wingspan_cm: u32,
}

/// All birds, in the order in which they came. All workers share them; a data base takes their place.
static BIRDS: Mutex<Vec<Bird>> = Mutex::new(Vec::new());

/// The routes of birds, each in the OpenAPI document.
pub(crate) fn routes(api: Api) -> Api {
    api.tag("birds")
        .get("/", list)
        .post("/", add)
        .get("/{id}", find)
}

/// All birds.
async fn list() -> Json<Vec<Bird>> {
    Json(birds().clone())
}

/// The bird with this number.
async fn find(Path(id): Path<usize>) -> Result<Json<Bird>, Problem> {
    let unknown = || {
        Problem::new(
            StatusCode::NOT_FOUND,
            "unknown-bird",
            format!("There is no bird {id}."),
        )
    };
    birds().get(id).cloned().map(Json).ok_or_else(unknown)
}

/// Adds a bird, and says which number it has.
async fn add(Valid(Json(bird)): Valid<Json<Bird>>) -> Status<201, Json<usize>> {
    let mut birds = birds();
    birds.push(bird);
    Status(Json(birds.len() - 1))
}

fn birds() -> MutexGuard<'static, Vec<Bird>> {
    // Nothing that panics leaves half a bird.
    BIRDS.lock().unwrap_or_else(PoisonError::into_inner)
}
