//! The responses that the server produces without a handler.

use super::{Http1, encode};
use crate::admission::Refusal;
use crate::exchange::body_sender::Upload;
use crate::io::context::{Link, Turn};
use crate::observe::close_reason::Ended;
use peregrine_driver::Driver;
use peregrine_proto::h1::Framing;
use peregrine_proto::{BodyLength, Reject, Version};
use peregrine_web::head::Head;
use peregrine_web::{Problem, Response};

impl Http1 {
    /// Responds to a request that was rejected because of overload. Its body is discarded.
    #[cold]
    pub(super) fn refuse<D: Driver>(
        &mut self,
        refusal: Refusal,
        head: &Head,
        framing: Framing,
        link: &mut Link<'_, D>,
    ) -> Turn {
        self.exchange.tally.route(head.route());
        self.exchange.tally.keep(head);
        self.exchange.tally.fail(refusal.fault());
        if framing.body != BodyLength::None {
            self.upload = Upload::Unwanted;
        }
        let response = link.worker.overload.answer(refusal, &link.worker.application);
        self.respond(Ok(response), link)
    }

    /// Responds to a request with a protocol error, and closes the connection.
    pub(super) fn reject<D: Driver>(&mut self, reject: Reject, link: &mut Link<'_, D>) -> Turn {
        link.protocol.drain();
        self.answer(reject.into(), link);
        Turn::linger(Ended::Rejected(reject))
    }

    /// Writes a response to a request that may not have been parsed.
    pub(super) fn answer<D: Driver>(&mut self, problem: Problem, link: &mut Link<'_, D>) {
        let response = self.render(problem, link);
        let (worker, tally) = (link.worker, &mut self.exchange.tally);
        if !tally.is_begun() {
            let facts = (Version::Http11, &*link.info);
            tally.begin(worker.meters.as_ref(), None, facts, || worker.driver.now());
            tally.keep_refused(link.io.reader.unread());
        }
        tally.answer(response.status);
        let out = &mut link.io.writer.plain;
        tally.send(encode::whole(link.protocol, &response, &worker.date(), out));
        self.exchange.finish();
    }

    /// Renders a problem in the application's format.
    pub(super) fn render<D: Driver>(&self, problem: Problem, link: &Link<'_, D>) -> Response {
        let application = &link.worker.application;
        match self.exchange.head() {
            Some(head) => application.render(problem, head),
            None => application.render(problem, &Head::take()),
        }
    }
}
