use peregrine::prelude::*;
use peregrine::simulate;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The seats of a hall, which all workers share: how many are free, and how many are sold.
#[derive(Clone)]
struct Hall(Arc<Mutex<(u32, u32)>>);

async fn buy(hall: StateRef<Hall>) -> Result<&'static str, Problem> {
    // Taken before it is paid, so that nobody pays for a seat that somebody else gets.
    let is_taken = {
        let (free, _) = &mut *hall.0.lock().unwrap();
        free.checked_sub(1).map(|left| *free = left).is_some()
    };
    if !is_taken {
        return Err(Problem::new(StatusCode::CONFLICT, "sold-out", "There is no seat left."));
    }
    pay().await;
    hall.0.lock().unwrap().1 += 1;
    Ok("Enjoy the show!")
}

/// Asks the bank, which takes its time. Where the real one is asked, a test puts something like this in its place.
async fn pay() {
    tokio::time::sleep(Duration::from_millis(800)).await;
}

fn app(hall: Hall) -> App {
    App::new().post("/seats", buy).state(hall)
}

fn every_seat_is_free_or_sold() {
    simulate::seeds(0..100, async |sim| {
        let hall = Hall(Arc::new(Mutex::new((5, 0))));
        let of_workers = hall.clone();
        let server = sim.serve(move || app(of_workers.clone()));
        let mut buyers = Vec::new();
        for _ in 0..8 {
            let patience = Duration::from_millis(500 + sim.random(5_000));
            let request = server.client().post("/seats").patience(patience);
            buyers.push(sim.spawn(async move { request.send().await }));
        }
        for buyer in buyers {
            // With or without a seat, or gone before the answer.
            let _ = buyer.await;
        }
        server.shut_down().await;
        let (free, sold) = *hall.0.lock().unwrap();
        assert_eq!(free + sold, 5, "{free} seats are free, and {sold} are sold");
    });
}
