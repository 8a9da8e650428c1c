//! The responses that the server produces without a handler.

use super::{Http1, encode};
use crate::admission::ShedReason;
use crate::exchange::body_sender::RequestBodySender;
use crate::io::context::{Action, ConnectionContext};
use crate::observe::close_reason::CloseReason;
use peregrine_driver::Driver;
use peregrine_proto::h1::Framing;
use peregrine_proto::{BodyLength, RequestError, Version};
use peregrine_web::head::RequestHead;
use peregrine_web::{Problem, Response};

impl Http1 {
    /// Responds to a request that was rejected because of overload. Its body is discarded.
    #[cold]
    pub(super) fn respond_shed<D: Driver>(
        &mut self,
        refusal: ShedReason,
        head: &RequestHead,
        framing: Framing,
        link: &mut ConnectionContext<'_, D>,
    ) -> Action {
        self.exchange.metrics.set_route(head.route_id());
        self.exchange.metrics.set_head(head);
        self.exchange.metrics.set_error(refusal.error_type());
        if framing.body != BodyLength::None {
            self.request_body = RequestBodySender::Discarding;
        }
        let response = link.worker.admission.shed_response(refusal, &link.worker.application);
        self.respond(Ok(response), link)
    }

    /// Responds to a request with a protocol error, and closes the connection.
    pub(super) fn reject<D: Driver>(
        &mut self,
        reject: RequestError,
        link: &mut ConnectionContext<'_, D>,
    ) -> Action {
        link.protocol.drain();
        self.respond_problem(reject.into(), link);
        Action::linger(CloseReason::Rejected(reject))
    }

    /// Writes a response to a request that may not have been parsed.
    pub(super) fn respond_problem<D: Driver>(
        &mut self,
        problem: Problem,
        link: &mut ConnectionContext<'_, D>,
    ) {
        let response = self.render_problem(problem, link);
        let (worker, tally) = (link.worker, &mut self.exchange.metrics);
        if !tally.is_started() {
            let facts = (Version::Http11, &*link.info);
            tally.start(worker.recorder.as_ref(), None, facts, || worker.driver.now());
            tally.set_invalid_line(link.io.input.unread());
        }
        tally.set_status(response.status);
        let out = &mut link.io.output.plaintext;
        tally.add_sent(encode::write_full(link.protocol, &response, &worker.date(), out));
        self.exchange.finish();
    }

    /// Renders a problem in the application's format.
    pub(super) fn render_problem<D: Driver>(
        &self,
        problem: Problem,
        link: &ConnectionContext<'_, D>,
    ) -> Response {
        let application = &link.worker.application;
        match self.exchange.head() {
            Some(head) => application.render_problem(problem, head),
            None => application.render_problem(problem, &RequestHead::from_pool()),
        }
    }
}
