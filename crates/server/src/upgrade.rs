//! A connection after HTTP: bytes both ways until one side is done (RFC 9110 §7.8).

use crate::connection::Talk;
use crate::deadline::Alarm;
use crate::ended::Ended;
use crate::exchange::{Raced, race};
use crate::inbox::Inbox;
use crate::stage::Stage;
use crate::worker::{Interrupt, Order, Until, Worker};
use bytes::Bytes;
use http::HeaderMap;
use peregrine_driver::{Driver, Stream};
use peregrine_web::body::BodyError;
use peregrine_web::pipe::{Writer, pipe};
use peregrine_web::upgrade::{OnUpgrade, Outgoing, UPGRADED_BYTES_MAX, Upgraded};
use std::cell::RefCell;
use std::future::{pending, poll_fn};
use std::pin::pin;

/// Runs the other protocol to its end, then closes.
pub(crate) async fn run<D: Driver>(talk: &mut Talk<'_, D>, upgrade: OnUpgrade) -> Ended {
    if let Err(ended) = talk.link.flush().await {
        return ended;
    }
    let _hold = talk.link.worker.driver.hold();
    let (writer, reader) = pipe(UPGRADED_BYTES_MAX, None);
    let outgoing = Outgoing::default();
    let ended = {
        let protocol = pin!(upgrade.run(Upgraded::new(reader, outgoing.clone())));
        let traffic = pin!(traffic(talk, writer, &outgoing));
        match race(protocol, traffic).await {
            Raced::First(()) => Ended::Upgraded,
            Raced::Second(ended) => ended,
        }
    };
    if matches!(ended, Ended::Upgraded) {
        // What the protocol wrote last is still to be sent.
        let mut left = Vec::new();
        let taken = poll_fn(|context| {
            std::task::Poll::Ready(outgoing.poll_take(context, &mut left).is_ready())
        });
        if taken.await {
            talk.link.outbox.extend_from_slice(&left);
        }
        return talk.close_unread(ended).await;
    }
    ended
}

/// Moves bytes both ways until the connection breaks. The peer's end is told to the protocol, which
/// may go on sending.
async fn traffic<D: Driver>(talk: &mut Talk<'_, D>, writer: Writer, outgoing: &Outgoing) -> Ended {
    let ways = Ways {
        worker: talk.link.worker,
        stream: talk.link.stream,
        alarm: talk.link.alarm,
        stage: RefCell::new(&mut *talk.link.stage),
        replies: RefCell::default(),
    };
    let inbox = &mut *talk.link.inbox;
    let incoming = pin!(async {
        match ways.receive(inbox, &writer).await {
            Ok(()) => writer.finish(HeaderMap::new()),
            // The sending way meets the same fault, or the order to end.
            Err(Ended::Broken(_)) => writer.fail(BodyError::Disconnected),
            Err(ended) => return ended,
        }
        pending().await
    });
    let sending = pin!(ways.send(outgoing));
    match race(incoming, sending).await {
        Raced::First(ended) | Raced::Second(ended) => {
            outgoing.close();
            ended
        }
    }
}

/// What the two ways share.
struct Ways<'c, D: Driver> {
    worker: &'c Worker<D>,
    stream: &'c D::Stream,
    alarm: &'c Alarm,
    stage: RefCell<&'c mut Stage>,
    /// What TLS has to say by itself, sent before the next bytes of the protocol.
    replies: RefCell<Vec<u8>>,
}

impl<D: Driver> Ways<'_, D> {
    async fn receive(
        &self,
        inbox: &mut Inbox<<D::Stream as Stream>::Chunk>,
        writer: &Writer,
    ) -> Result<(), Ended> {
        loop {
            if !inbox.is_empty() {
                // A protocol that does not read any more loses what comes.
                let _ = poll_fn(|context| writer.poll_room(context)).await;
                writer.push(Bytes::copy_from_slice(inbox.unread()));
                inbox.consume(inbox.unread().len());
            }
            let chunk = self.stream.recv().await.map_err(|error| Ended::Broken(error.kind()))?;
            if chunk.is_empty() {
                return Ok(());
            }
            match &mut **self.stage.borrow_mut() {
                Stage::Plain => inbox.push(chunk),
                Stage::Tls(tls) => {
                    let mut replies = self.replies.borrow_mut();
                    inbox
                        .extend_by(|plain| tls.receive(&chunk, plain, &mut replies))
                        .map_err(|reject| Ended::TlsFailed(reject.to_string()))?;
                    if tls.received == peregrine_tls::Received::Closed && inbox.is_empty() {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn send(&self, outgoing: &Outgoing) -> Ended {
        let mut out = Vec::new();
        loop {
            out.clear();
            let take = pin!(poll_fn(|context| outgoing.poll_take(context, &mut out)));
            let taken = self.worker.within(self.alarm, Until::Never, Order::Cut, take).await;
            if taken.is_err() {
                return Ended::Cut;
            }
            if let Stage::Tls(tls) = &mut **self.stage.borrow_mut() {
                let mut wire = self.replies.take();
                if let Err(error) = tls.session.send(&out, &mut wire) {
                    return Ended::TlsFailed(error.to_string());
                }
                out = wire;
            }
            let until = Until::In(self.worker.limits.write_stall_timeout);
            self.stream.send(&mut out);
            let send = pin!(self.stream.sent());
            match self.worker.within(self.alarm, until, Order::Cut, send).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Ended::Broken(error.kind()),
                Err(Interrupt::Deadline) => return Ended::WriteStalled,
                Err(Interrupt::Order) => return Ended::Cut,
            }
        }
    }
}
