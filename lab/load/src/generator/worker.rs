//! One thread of a run: the loop between the schedule, the connections and the kernel.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustls::ClientConfig;

use super::lane::{Awaited, State};
use super::lanes::Lanes;
use super::outcome::{LATE_NS, Outcome};
use super::{Plan, Watch};
use crate::client::engine::{self, Engine};
use crate::client::fault::Fault;
use crate::client::{EngineKind, thread_cpu, write_records};
use crate::http2::Request;
use crate::schedule::Starts;
use crate::speech::Speech;

/// How many connections are being made at a time: more would overflow a short accept queue.
const CONNECTING_MAX: usize = 128;

/// How many connections are begun at a time before the first request, and how long after each other.
/// A server that accepts more slowly than the client connects, with room for 128 as axum has, refuses
/// the rest without a word, and a client tries again after a second, then two, then four.
const CONNECT_GROUP: usize = 4;
const CONNECT_GROUP_NS: u64 = 1_000_000;

/// How long a connection may take to be made, its handshake included.
const CONNECT_TIMEOUT_NS: u64 = 5_000_000_000;

/// How long a connection stays down after a fault, so that a broken server is not hammered.
const FAULT_PAUSE_NS: u64 = 10_000_000;

/// How long the server may take to close after `Connection: close`.
const CLOSE_TIMEOUT_NS: u64 = 200_000_000;

/// How long all connections may take to be made before the first request.
const CONNECT_ALL_NS: u64 = 30_000_000_000;

/// How often timeouts are looked for, at most.
const LOOK_NS_MAX: u64 = 20_000_000;

/// How long replies may take after the last request was sent, unless the timeout is shorter.
const DRAIN_NS: u64 = 2_000_000_000;

/// How precisely the kernel is to keep the times of an open loop.
const TIMER_SLACK: Option<NonZeroU64> = NonZeroU64::new(1);

pub(super) struct Worker<'a> {
    plan: &'a Plan,
    kind: EngineKind,
    engine: Box<dyn Engine>,
    lanes: Lanes<'a>,
    starts: Starts,
    next_start_ns: Option<u64>,
    /// Intended starts of requests that wait for a connection.
    waiting: VecDeque<u64>,
    /// Lanes to be connected, and when at the earliest.
    down: VecDeque<(usize, u64)>,
    origin: Instant,
    /// When the schedule began, since the origin.
    begin_ns: u64,
    next_number: u64,
    sent_all: u64,
    requests_max: u64,
    request: Vec<u8>,
    /// HTTP/2: the request that was rendered last, in the form of HTTP/1.1 and in its own.
    rendered: Vec<u8>,
    frames: Option<Request>,
    outgoing: Vec<u8>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        config: Option<&'a Arc<ClientConfig>>,
        thread: usize,
    ) -> io::Result<Worker<'a>> {
        let (kind, engine) = engine::make(plan.engine)?;
        let share =
            |whole: usize| whole / plan.threads + usize::from(thread < whole % plan.threads);
        let connections = share(plan.connections);
        let threads = plan.threads as u64;
        let requests =
            plan.requests_max / threads + u64::from((thread as u64) < plan.requests_max % threads);
        let whole_ns = nanoseconds(plan.warmup + plan.duration);
        let phase = thread as f64 / plan.threads as f64;
        let seed = plan.seed.wrapping_add(thread as u64);
        let starts = plan.schedule.share(plan.threads).starts(whole_ns, phase, seed);
        Ok(Worker {
            plan,
            kind,
            engine,
            lanes: Lanes::new(plan, config, connections),
            starts,
            next_start_ns: None,
            waiting: VecDeque::new(),
            down: (0..connections).map(|lane| (lane, 0)).collect(),
            origin: Instant::now(),
            begin_ns: 0,
            next_number: thread as u64,
            sent_all: 0,
            requests_max: requests,
            request: Vec::new(),
            rendered: Vec::new(),
            frames: None,
            outgoing: Vec::new(),
        })
    }

    fn now_ns(&self) -> u64 {
        nanoseconds(self.origin.elapsed())
    }

    pub(super) fn run(mut self, watch: &Watch, at_warm: &dyn Fn()) -> io::Result<Outcome> {
        if !self.plan.schedule.is_closed() {
            rustix::thread::set_current_timer_slack(TIMER_SLACK)?;
        }
        self.connect_all(watch)?;
        self.begin_ns = self.now_ns();
        self.next_start_ns = self.next_start();
        let warm_ns = self.begin_ns + nanoseconds(self.plan.warmup);
        let end_ns = warm_ns + nanoseconds(self.plan.duration);
        let mut seen = [0; 3];
        let mut is_warm = false;
        let mut cpu_start = thread_cpu();
        let mut asked_start_ns = self.begin_ns;
        let mut now_ns = self.begin_ns;
        let mut look_ns = now_ns;
        let mut is_stopped = false;
        loop {
            if !is_warm && now_ns >= warm_ns {
                at_warm();
                now_ns = self.now_ns();
                (is_warm, cpu_start, asked_start_ns) = (true, thread_cpu(), now_ns);
                if !self.plan.warmup.is_zero() {
                    self.lanes.forget(now_ns);
                    seen = [0; 3];
                }
            }
            is_stopped |= watch.is_stopped.load(Ordering::Relaxed);
            let is_over = now_ns >= end_ns || self.sent_all >= self.requests_max || is_stopped;
            if is_over || (self.down.is_empty() && self.lanes.is_lost()) {
                break;
            }
            self.start_due(now_ns);
            self.reconnect(now_ns, CONNECTING_MAX);
            self.dispatch()?;
            if now_ns >= look_ns {
                look_ns = now_ns + self.look(now_ns);
            }
            let until_ns = self.next_start_ns.unwrap_or(u64::MAX).min(look_ns).min(end_ns);
            self.turn(until_ns)?;
            now_ns = self.now_ns();
            let outcome = &self.lanes.outcome;
            watch.add(outcome.sent - outcome.carried, outcome.replies, &outcome.faults, &mut seen);
        }
        if now_ns >= end_ns && !is_stopped && !self.plan.schedule.is_closed() {
            // Requests that were due before the end, of which a thread without a turn hears only now, are as late as others are.
            self.start_due(now_ns);
            self.dispatch()?;
        }
        self.lanes.judge.is_asking = false;
        let asked_ns = now_ns - asked_start_ns;
        self.drain(is_stopped)?;
        let now_ns = self.now_ns();
        let mut outcome = self.lanes.finish(now_ns);
        if self.sent_all < self.requests_max {
            // Requests that still wait for a connection were never sent.
            outcome.dropped += self.waiting.len() as u64;
        }
        outcome.asked = Duration::from_nanos(asked_ns);
        outcome.wall = Duration::from_nanos(now_ns - asked_start_ns);
        outcome.client_cpu = thread_cpu().saturating_sub(cpu_start);
        outcome.engine = Some(self.kind);
        outcome.is_partial = is_stopped;
        watch.add(outcome.sent - outcome.carried, outcome.replies, &outcome.faults, &mut seen);
        Ok(outcome)
    }

    /// Makes all connections before the first request, so that none of them is measured by
    /// accident. Goes on with those that could be made.
    fn connect_all(&mut self, watch: &Watch) -> io::Result<()> {
        let mut now_ns = self.now_ns();
        let mut group_ns = now_ns;
        while now_ns < CONNECT_ALL_NS && !watch.is_stopped.load(Ordering::Relaxed) {
            // A lane that failed once is tried again during the run.
            let is_tried = self.down.iter().all(|&(_, not_before_ns)| not_before_ns > 0);
            if is_tried && self.lanes.connecting == 0 {
                break;
            }
            if !is_tried && now_ns >= group_ns {
                self.reconnect(now_ns, CONNECT_GROUP);
                group_ns = now_ns + CONNECT_GROUP_NS;
            }
            self.look(now_ns);
            self.turn(if is_tried { now_ns + LOOK_NS_MAX } else { group_ns })?;
            now_ns = self.now_ns();
        }
        for lane in &mut self.lanes.lanes {
            lane.begun_ns = None;
        }
        if self.lanes.is_lost() {
            // Nothing listens there: trying for the whole duration would tell nothing more.
            self.down.clear();
        }
        Ok(())
    }

    fn next_start(&mut self) -> Option<u64> {
        self.starts.next().map(|offset_ns| self.begin_ns + offset_ns)
    }

    /// Moves every start that is due into the queue, or drops it where the queue is full.
    fn start_due(&mut self, now_ns: u64) {
        while let Some(start_ns) = self.next_start_ns.filter(|&start_ns| start_ns <= now_ns) {
            self.lanes.outcome.lag.record(now_ns - start_ns);
            if self.waiting.len() < self.plan.waiting_max {
                self.waiting.push_back(start_ns);
            } else {
                self.lanes.outcome.dropped += 1;
            }
            self.next_start_ns = self.next_start();
        }
    }

    /// Sends what may be sent: in a closed loop as much as there is room for, in an open one what
    /// is due.
    fn dispatch(&mut self) -> io::Result<()> {
        if self.lanes.ready.is_empty() {
            return Ok(());
        }
        let is_closed = self.plan.schedule.is_closed();
        let now_ns = self.now_ns();
        self.lanes.judge.advance(now_ns);
        while self.sent_all < self.requests_max {
            if !is_closed && self.waiting.is_empty() {
                break;
            }
            let Some(lane) = self.lanes.ready.pop_front() else { break };
            self.lanes.lanes[lane].is_queued = false;
            if !self.lanes.has_room(lane) {
                continue;
            }
            self.outgoing.clear();
            let mut most = if is_closed { self.plan.depth } else { 1 };
            while most > 0 && self.lanes.has_room(lane) && self.sent_all < self.requests_max {
                most -= 1;
                let intended_ns = if is_closed {
                    self.lanes.lanes[lane].begun_ns.unwrap_or(now_ns)
                } else {
                    self.waiting.pop_front().expect("it was not empty")
                };
                self.ask(lane, intended_ns, now_ns)?;
            }
            self.lanes.lanes[lane].begun_ns = None;
            let (lanes, outgoing) = (&mut self.lanes.lanes, &mut self.outgoing);
            if let Some(session) = &mut lanes[lane].session {
                write_records(session, outgoing)?;
            }
            self.engine.send(lanes[lane].token, outgoing)?;
            self.lanes.queue(lane);
        }
        Ok(())
    }

    /// Renders one request of the lane into the bytes to be sent.
    fn ask(&mut self, lane: usize, intended_ns: u64, now_ns: u64) -> io::Result<()> {
        let Lanes { lanes, judge, outcome, .. } = &mut self.lanes;
        let lane = &mut lanes[lane];
        let number = self.next_number;
        self.next_number += self.plan.threads as u64;
        self.sent_all += 1;
        lane.asked += 1;
        lane.awaited.push_back(Awaited { number, intended_ns, sent_ns: now_ns });
        judge.under_way += 1;
        outcome.sent += 1;
        let is_late = !self.plan.schedule.is_closed() && now_ns - intended_ns > LATE_NS;
        outcome.late += u64::from(is_late);
        let is_last = lane.asked == judge.requests_per_connection;
        let question = judge.question;
        if lane.session.is_none() && matches!(lane.speech, Speech::Http1) {
            let before = self.outgoing.len();
            question.render(number, is_last, &mut judge.scratch, &mut self.outgoing);
            outcome.sent_bytes += (self.outgoing.len() - before) as u64;
            return Ok(());
        }
        self.request.clear();
        match &mut lane.speech {
            Speech::Http1 => {
                question.render(number, is_last, &mut judge.scratch, &mut self.request);
            }
            Speech::WebSocket(websocket) => {
                judge.scratch.clear();
                question.render_body(number, &mut judge.scratch);
                websocket.say(&judge.scratch, &mut self.request);
            }
            Speech::Http2(http2) => {
                if self.frames.is_none() || !question.is_constant() {
                    self.rendered.clear();
                    question.render(number, is_last, &mut judge.scratch, &mut self.rendered);
                    let frames = self.frames.get_or_insert_default();
                    frames.set(&self.rendered, self.plan.tls.is_some());
                }
                if let Some(frames) = &self.frames {
                    http2.ask(frames, number, &mut self.request);
                }
            }
        }
        outcome.sent_bytes += self.request.len() as u64;
        match &mut lane.session {
            Some(session) => session.writer().write_all(&self.request),
            None => {
                self.outgoing.extend_from_slice(&self.request);
                Ok(())
            }
        }
    }

    /// Begins at most `count` connections that are due, as far as not too many are being made.
    fn reconnect(&mut self, now_ns: u64, count: usize) {
        for _ in 0..count {
            if self.lanes.connecting >= CONNECTING_MAX {
                break;
            }
            let is_due = |&(_, not_before_ns): &(usize, u64)| not_before_ns <= now_ns;
            let Some(place) = self.down.iter().position(is_due) else { break };
            let (lane, _) = self.down.remove(place).expect("the place was just found");
            match self.engine.connect(self.plan.address) {
                Ok(token) => self.lanes.begin(lane, token, now_ns),
                // No port or descriptor is left: others may be given back soon.
                Err(_) => {
                    self.lanes.outcome.fail(Fault::Connect, 0);
                    self.down.push_back((lane, now_ns + FAULT_PAUSE_NS));
                }
            }
        }
    }

    /// One turn of the engine, which waits no longer than `until_ns`.
    fn turn(&mut self, until_ns: u64) -> io::Result<()> {
        let wait = Duration::from_nanos(until_ns.saturating_sub(self.now_ns()));
        let Worker { engine, lanes, origin, .. } = self;
        let mut is_stamped = false;
        engine.turn(wait, &mut |token, event| {
            // All events of a turn had happened when it began to report them.
            if !is_stamped {
                lanes.judge.advance(nanoseconds(origin.elapsed()));
                is_stamped = true;
            }
            lanes.on_event(token, event);
        })?;
        for (token, bytes) in self.lanes.records.drain(..) {
            if self.lanes.by_token[token].is_some() {
                self.engine.send(token, &bytes)?;
            }
        }
        let now_ns = self.lanes.judge.now_ns;
        for (lane, is_fault) in std::mem::take(&mut self.lanes.over) {
            self.give_up(lane, if is_fault { now_ns + FAULT_PAUSE_NS } else { now_ns.max(1) });
        }
        Ok(())
    }

    /// Closes the lane's connection; it is made anew at `not_before_ns`.
    fn give_up(&mut self, lane: usize, not_before_ns: u64) {
        let Lanes { lanes, by_token, connecting, .. } = &mut self.lanes;
        let one = &mut lanes[lane];
        if one.state == State::Down {
            return;
        }
        if matches!(one.state, State::Connecting | State::Shaking) {
            *connecting -= 1;
        }
        one.state = State::Down;
        one.session = None;
        one.speech = Speech::Http1;
        by_token[one.token] = None;
        self.engine.detach(one.token);
        self.down.push_back((lane, not_before_ns));
    }

    /// Looks for what took too long, and says when to look again, from now.
    fn look(&mut self, now_ns: u64) -> u64 {
        let timeout_ns = nanoseconds(self.plan.timeout);
        self.lanes.judge.advance(now_ns);
        for lane in 0..self.lanes.lanes.len() {
            let one = &self.lanes.lanes[lane];
            let age_ns = now_ns.saturating_sub(one.since_ns);
            let (is_over, is_fault) = match one.state {
                State::Down => (false, false),
                State::Connecting | State::Shaking => (age_ns > CONNECT_TIMEOUT_NS, true),
                State::Open => {
                    let first = one.awaited.front();
                    (first.is_some_and(|one| now_ns >= one.sent_ns + timeout_ns), true)
                }
                State::Finishing => (age_ns > CLOSE_TIMEOUT_NS, false),
            };
            if !is_over {
                continue;
            }
            match one.state {
                State::Finishing => {
                    self.lanes.outcome.closes_ignored += 1;
                    self.engine.set_reset_on_close(one.token);
                }
                State::Open => self.lanes.time_out(lane, timeout_ns),
                State::Shaking => {
                    let fault = one.shaking_fault();
                    self.lanes.outcome.fail(fault, 0);
                }
                _ => self.lanes.outcome.fail(Fault::Connect, 0),
            }
            self.give_up(lane, now_ns + if is_fault { FAULT_PAUSE_NS } else { 0 });
        }
        (timeout_ns / 20).clamp(100_000, LOOK_NS_MAX)
    }

    /// Awaits what is under way, unless the run was stopped.
    fn drain(&mut self, is_stopped: bool) -> io::Result<()> {
        let mut now_ns = self.now_ns();
        let drain_ns = DRAIN_NS.min(nanoseconds(self.plan.timeout) + LOOK_NS_MAX);
        let end_ns = now_ns + if is_stopped { 0 } else { drain_ns };
        // The last look is after the end: this thread may have been without a turn until then.
        loop {
            let next_ns = now_ns + self.look(now_ns);
            if self.lanes.judge.under_way == 0 || now_ns >= end_ns {
                return Ok(());
            }
            self.turn(next_ns.min(end_ns))?;
            now_ns = self.now_ns();
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a run is shorter than 500 years")
}
