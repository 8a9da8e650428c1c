//! Handlers that respond before their request's body is read, and leave reading it to another
//! handler.

use super::app::stream;
use bytes::Bytes;
use peregrine::web::{App, Body};
use std::cell::RefCell;
use std::rc::Rc;
use std::task::Poll;

/// Adds these handlers. One body is stored at a time.
pub(super) fn late_body_handlers(app: App) -> App {
    let stored_body = Rc::<RefCell<Option<Body>>>::default();
    let slots: [_; 4] = std::array::from_fn(|_| Rc::clone(&stored_body));
    let [slot_for_whole, slot_for_streamed, slot_for_read, slot_for_drop] = slots;
    app.post("/keep", move |body: Body| {
        *slot_for_whole.borrow_mut() = Some(body);
        "kept"
    })
    .post("/keep-streaming", move |body: Body| {
        *slot_for_streamed.borrow_mut() = Some(body);
        let mut pieces = ["ke", "pt"].into_iter();
        stream(move |_| Poll::Ready(pieces.next().map(|piece| Ok(Bytes::from(piece)))))
    })
    .get("/read-kept", move || {
        let body = slot_for_read.borrow_mut().take();
        async move {
            let Some(mut body) = body else { return "nothing".to_owned() };
            let mut bytes = 0;
            while let Some(piece) = body.next().await {
                match piece {
                    Ok(piece) => bytes += piece.len(),
                    Err(error) => return format!("{error:?}"),
                }
            }
            format!("{bytes} bytes")
        }
    })
    .get("/drop-kept", move || {
        slot_for_drop.borrow_mut().take();
        "dropped"
    })
}
