//! What only keepers may do: an application of its own, with a state of its own, that the whole one
//! merges. Of the states that it lacks it sees those around it.

use crate::auth::{self, Keeper};
use crate::store::Store;
use peregrine::prelude::*;

pub(crate) fn app() -> App {
    App::new().state(Keeper("keeper")).with(auth::guard).delete("/birds", clear)
}

async fn clear(store: StateRef<Store>) -> StatusCode {
    store.with(|birds| birds.clear());
    StatusCode::NO_CONTENT
}
