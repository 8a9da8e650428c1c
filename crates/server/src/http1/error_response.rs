//! The responses that the server produces without a handler.

use super::{Http1, encode};
use crate::admission::ShedReason;
use crate::exchange::request_body::RequestBodySender;
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
        reason: ShedReason,
        head: &RequestHead,
        framing: Framing,
        conn: &mut ConnectionContext<'_, D>,
    ) -> Action {
        self.exchange.metrics.set_route(head.route_id());
        self.exchange.metrics.set_head(head);
        self.exchange.metrics.set_error(reason.error_type());
        if framing.body != BodyLength::None {
            self.request_body = RequestBodySender::Discarding;
        }
        let response = conn.worker.admission.shed_response(reason, &conn.worker.application);
        self.respond(Ok(response), conn)
    }

    /// Responds to a request that breaks a rule of HTTP or exceeds a limit, and closes the
    /// connection.
    pub(super) fn reject<D: Driver>(
        &mut self,
        error: RequestError,
        conn: &mut ConnectionContext<'_, D>,
    ) -> Action {
        conn.protocol.stop_after_response();
        self.respond_problem(error.into(), conn);
        Action::linger(CloseReason::Rejected(error))
    }

    /// Writes an error response without calling a handler, and reports the request, even if its
    /// head is invalid or incomplete.
    pub(super) fn respond_problem<D: Driver>(
        &mut self,
        problem: Problem,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let response = self.render_problem(problem, conn);
        let (worker, metrics) = (conn.worker, &mut self.exchange.metrics);
        if !metrics.is_started() {
            let version_and_info = (Version::Http11, &*conn.info);
            metrics.start(worker.recorder.as_ref(), None, version_and_info, || worker.driver.now());
            metrics.set_invalid_line(conn.io.input.unread());
        }
        metrics.set_status(response.status);
        let out = &mut conn.io.output.plaintext;
        metrics.add_sent(encode::write_full(conn.protocol, &response, &worker.date(), out));
        self.exchange.report_request();
    }

    /// Renders a problem in the application's format.
    pub(super) fn render_problem<D: Driver>(
        &self,
        problem: Problem,
        conn: &ConnectionContext<'_, D>,
    ) -> Response {
        let application = &conn.worker.application;
        match self.exchange.head() {
            Some(head) => application.render_problem(problem, head),
            None => application.render_problem(problem, &RequestHead::from_pool()),
        }
    }
}
