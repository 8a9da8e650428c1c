//! What refused requests are answered: made once, because there may be very many.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use peregrine_web::application::Application;
use peregrine_web::head::Head;
use peregrine_web::{IntoResponse, Problem, Response};
use std::cell::OnceCell;
use std::fmt;

/// The answers of one worker, in the application's form for problems, which is asked once for each.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    overloaded: OnceCell<Answer>,
    too_many: OnceCell<Answer>,
}

struct Answer {
    status: StatusCode,
    fields: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
}

impl Answers {
    /// The answer to a request that is refused; `is_clients_fault`: because of what its client does.
    pub(crate) fn response(
        &self,
        is_clients_fault: bool,
        retry_after: u64,
        application: &Application,
    ) -> Response {
        let (answer, problem): (_, fn(u64) -> Problem) = if is_clients_fault {
            (&self.too_many, Problem::too_many_requests)
        } else {
            (&self.overloaded, Problem::overloaded)
        };
        answer.get_or_init(|| Answer::of(|| problem(retry_after), application)).response()
    }
}

impl Answer {
    fn of(problem: impl Fn() -> Problem, application: &Application) -> Self {
        let rendered = application.render(problem(), &Head::take());
        // A form that streams cannot be kept.
        let response = match rendered.body.as_slice() {
            Some(_) => rendered,
            None => problem().into_response(),
        };
        Self {
            status: response.status,
            fields: response
                .fields
                .iter()
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            body: Bytes::copy_from_slice(response.body.as_slice().unwrap_or_default()),
        }
    }

    fn response(&self) -> Response {
        let mut response = Response::new(self.status).with_body(self.body.clone());
        response.fields.extend(self.fields.iter().cloned());
        response
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("status", &self.status).finish_non_exhaustive()
    }
}
