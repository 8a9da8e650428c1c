//! The connections of one thread, and what the events of the kernel do to them.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

use rustls::ClientConfig;

use super::Plan;
use super::judge::Judge;
use super::lane::{Lane, State};
use super::outcome::Outcome;
use crate::client::engine::{Event, Token};
use crate::client::fault::Fault;
use crate::client::{tls, write_records};
use crate::speech::{Opening, Speech};

/// All connections of a thread; whoever holds the engine does what they ask for.
pub(super) struct Lanes<'a> {
    plan: &'a Plan,
    config: Option<&'a Arc<ClientConfig>>,
    pub(super) lanes: Vec<Lane>,
    /// The lane of each token, or none if it has been given up.
    pub(super) by_token: Vec<Option<usize>>,
    /// Lanes that have room for a request.
    pub(super) ready: VecDeque<usize>,
    pub(super) judge: Judge<'a>,
    pub(super) outcome: Outcome,
    /// How many lanes are being connected.
    pub(super) connecting: usize,
    /// Lanes whose connection is over, and whether by a fault.
    pub(super) over: Vec<(usize, bool)>,
    /// Bytes that are to be sent at once: of TLS sessions, and what HTTP/2 wants answered.
    pub(super) records: Vec<(Token, Vec<u8>)>,
    scratch: Vec<u8>,
}

impl<'a> Lanes<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        config: Option<&'a Arc<ClientConfig>>,
        connections: usize,
    ) -> Lanes<'a> {
        Lanes {
            plan,
            config,
            lanes: (0..connections).map(|_| Lane::new()).collect(),
            by_token: Vec::new(),
            ready: VecDeque::with_capacity(connections),
            judge: Judge::new(plan),
            outcome: Outcome::default(),
            connecting: 0,
            over: Vec::new(),
            records: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Whether no lane has a connection or is getting one.
    pub(super) fn is_lost(&self) -> bool {
        self.lanes.iter().all(|lane| lane.state == State::Down)
    }

    pub(super) fn has_room(&self, lane: usize) -> bool {
        self.lanes[lane].has_room(self.plan.depth, self.judge.requests_per_connection)
    }

    /// Puts the lane into the queue of those that have room, if it has.
    pub(super) fn queue(&mut self, lane: usize) {
        if !self.lanes[lane].is_queued && self.has_room(lane) {
            self.lanes[lane].is_queued = true;
            self.ready.push_back(lane);
        }
    }

    pub(super) fn begin(&mut self, lane: usize, token: Token, now_ns: u64) {
        if token >= self.by_token.len() {
            self.by_token.resize(token + 1, None);
        }
        self.by_token[token] = Some(lane);
        self.connecting += 1;
        self.lanes[lane].begin(token, now_ns, true);
    }

    pub(super) fn on_event(&mut self, token: Token, event: Event<'_>) {
        let Some(&Some(lane)) = self.by_token.get(token) else { return };
        if self.over.iter().any(|&(other, _)| other == lane) {
            return;
        }
        match event {
            Event::Connected => self.on_connected(lane),
            Event::Data(bytes) => self.on_data(lane, bytes),
            Event::Ended(error) => {
                let one = &mut self.lanes[lane];
                let fault = one.ended(error.as_ref());
                self.outcome.closed_idle +=
                    u64::from(fault.is_none() && one.state == State::Open && one.asked > 0);
                self.over.push((lane, fault.is_some() || one.asked == 0));
                if let Some(fault) = fault {
                    self.lose(lane, fault);
                }
            }
        }
    }

    fn on_connected(&mut self, lane: usize) {
        let one = &mut self.lanes[lane];
        self.scratch.clear();
        let question = self.judge.question;
        let mut request = Vec::new();
        let opening = if question.is_websocket {
            question.render(0, false, &mut self.judge.scratch, &mut request);
            let seed = self.plan.seed ^ ((lane as u64) << 40) ^ self.judge.now_ns;
            Opening::WebSocket { request: &request, seed }
        } else if self.plan.is_http2 {
            Opening::Http2
        } else {
            Opening::Http1
        };
        one.speech = Speech::begin(opening, &mut self.scratch);
        let (Some(config), Some(secured)) = (self.config, &self.plan.tls) else {
            if !one.speech.is_ready() {
                one.state = State::Shaking;
                self.records.push((one.token, self.scratch.clone()));
                return;
            }
            one.open(self.judge.now_ns, &mut self.outcome);
            self.connecting -= 1;
            self.queue(lane);
            return;
        };
        one.state = State::Shaking;
        let mut hello = Vec::new();
        // What is said first waits in the session until hands are shaken.
        let begun =
            tls::begin(config, &secured.server_name).map_err(|_| ()).and_then(|mut session| {
                session.writer().write_all(&self.scratch).map_err(|_| ())?;
                write_records(&mut session, &mut hello).map_err(|_| ())?;
                Ok(session)
            });
        match begun {
            Ok(session) => {
                one.session = Some(session);
                self.records.push((one.token, hello));
            }
            Err(()) => {
                self.outcome.fail(Fault::Tls, 0);
                self.over.push((lane, true));
            }
        }
    }

    fn on_data(&mut self, lane: usize, bytes: &[u8]) {
        let one = &mut self.lanes[lane];
        if one.state == State::Finishing {
            // Bytes behind the last reply, unless they are the end of the TLS session.
            if one.session.is_none() {
                self.outcome.fail(Fault::Malformed, 0);
                self.over.push((lane, true));
            }
            return;
        }
        let was_shaking = one.state == State::Shaking;
        self.scratch.clear();
        let received = one.receive(bytes, &mut self.judge, &mut self.outcome, &mut self.scratch);
        if !self.scratch.is_empty() {
            self.records.push((one.token, self.scratch.clone()));
        }
        if was_shaking && one.state == State::Open {
            self.connecting -= 1;
        }
        if let Err(fault) = received {
            self.lose(lane, fault);
            self.over.push((lane, true));
            return;
        }
        if one.is_last && one.awaited.is_empty() && one.state == State::Open {
            one.state = State::Finishing;
            one.since_ns = self.judge.now_ns;
            return;
        }
        self.queue(lane);
    }

    /// Counts the fault once for each request that it cost.
    pub(super) fn lose(&mut self, lane: usize, fault: Fault) {
        let now_ns = self.judge.now_ns;
        let awaited = std::mem::take(&mut self.lanes[lane].awaited);
        self.judge.under_way -= awaited.len() as u64;
        for one in &awaited {
            self.outcome.waited_ns += u128::from(now_ns.saturating_sub(one.sent_ns));
        }
        self.outcome.fail(fault, awaited.len() as u64);
    }

    /// Keeps each request of the lane as a censored sample: its reply would have taken at least
    /// this long, and those behind it in a pipeline no less.
    pub(super) fn time_out(&mut self, lane: usize, timeout_ns: u64) {
        for one in &self.lanes[lane].awaited {
            let until_sent_ns = one.sent_ns.saturating_sub(one.intended_ns);
            self.outcome.latency.record_censored(until_sent_ns + timeout_ns);
        }
        self.lose(lane, Fault::Timeout);
    }

    /// Forgets the warm-up. What is under way counts as sent.
    pub(super) fn forget(&mut self, now_ns: u64) {
        self.judge.advance(now_ns);
        self.judge.occupied_ns = 0;
        let carried = self.judge.under_way;
        let seen = std::mem::take(&mut self.outcome);
        // Connections outlive the warm-up, so what is known of them stays.
        self.outcome = Outcome {
            carried,
            sent: carried,
            connecting: seen.connecting,
            handshakes_full: seen.handshakes_full,
            handshakes_resumed: seen.handshakes_resumed,
            alpn_missing: seen.alpn_missing,
            streams_max: seen.streams_max,
            ..Outcome::default()
        };
        // The next reply is read whole, so that its Date is seen.
        self.judge.forget();
        for one in self.lanes.iter_mut().flat_map(|lane| &mut lane.awaited) {
            // Little's law is checked from here on.
            one.sent_ns = one.sent_ns.max(self.judge.now_ns);
        }
    }

    /// Counts what nobody waits for any longer, and hands the outcome over.
    pub(super) fn finish(&mut self, now_ns: u64) -> Outcome {
        self.judge.advance(now_ns);
        self.outcome.occupied_ns = self.judge.occupied_ns;
        for lane in &self.lanes {
            for one in &lane.awaited {
                self.outcome.outstanding += 1;
                self.outcome.latency.record_censored(now_ns.saturating_sub(one.intended_ns));
                self.outcome.waited_ns += u128::from(now_ns.saturating_sub(one.sent_ns));
            }
        }
        std::mem::take(&mut self.outcome)
    }
}
