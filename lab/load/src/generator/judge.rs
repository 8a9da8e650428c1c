//! What all connections of a thread share while they judge replies.

use std::time::Duration;

use super::Plan;
use crate::client::fault::Fault;
use crate::client::reply::Reply;
use crate::question::Question;

/// What all lanes of a thread share while they judge replies.
pub(crate) struct Judge<'a> {
    pub(crate) question: &'a Question,
    pub(crate) is_http2: bool,
    pub(crate) requests_per_connection: u64,
    pub(crate) burn: Duration,
    /// Whether replies still count as in time.
    pub(crate) is_asking: bool,
    /// The time of what happens at the moment.
    pub(crate) now_ns: u64,
    /// How many requests are under way on all lanes.
    pub(crate) under_way: u64,
    /// The integral of that number over time.
    pub(crate) occupied_ns: u128,
    pub(crate) scratch: Vec<u8>,
    /// The right reply that came last, by whether it was the connection's last: where the same
    /// reply is right for all requests, the same bytes again need no reading.
    pub(super) remembered: [Vec<u8>; 2],
    /// How many of their bytes are the body's.
    pub(super) remembered_bodies: [usize; 2],
    pub(super) is_constant: bool,
}

impl<'a> Judge<'a> {
    pub(crate) fn new(plan: &'a Plan) -> Judge<'a> {
        let question = &*plan.question;
        Judge {
            question,
            is_http2: plan.is_http2,
            requests_per_connection: plan.requests_per_connection.unwrap_or(u64::MAX),
            burn: plan.burn,
            is_asking: true,
            now_ns: 0,
            under_way: 0,
            occupied_ns: 0,
            scratch: Vec::new(),
            remembered: [Vec::new(), Vec::new()],
            remembered_bodies: [0; 2],
            is_constant: question.expected.is_constant(),
        }
    }

    /// Moves the time on. To be called before anything changes that happens at that time.
    pub(crate) fn advance(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.now_ns);
        self.occupied_ns += u128::from(self.under_way) * u128::from(passed_ns);
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Makes the next reply be read whole, whatever came before.
    pub(crate) fn forget(&mut self) {
        self.remembered.iter_mut().for_each(Vec::clear);
    }

    pub(super) fn check(&mut self, reply: &Reply<'_>, number: u64) -> Result<(), Fault> {
        let number = self.question.number(number);
        self.question.expected.check(reply, self.question.values(), number, &mut self.scratch)
    }
}
