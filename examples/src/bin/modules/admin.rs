//! Routes for keepers only: an application with its own state, merged into the main one. State that
//! it does not set comes from the application around it.

use crate::auth::{self, Keeper};
use crate::store::Store;
use peregrine::prelude::*;

pub(crate) fn app() -> App {
    App::new().state(Keeper("keeper")).wrap(auth::guard).delete("/birds", clear)
}

async fn clear(store: StateRef<Store>) -> StatusCode {
    store.with(|birds| birds.clear());
    StatusCode::NO_CONTENT
}
