//! A state that cannot be cloned.

use peregrine_web::App;
use peregrine_web::extract::State;

pub struct Counter(pub u64);

async fn show(State(counter): State<Counter>) -> String {
    counter.0.to_string()
}

pub fn app() {
    let _ = App::new().get("/", show).state(Counter(0));
}

peregrine_web::check_handler!(async fn show(_));
