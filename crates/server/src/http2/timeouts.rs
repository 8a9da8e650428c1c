//! Handles expired deadlines: of heads, streams, PING and GOAWAY.

use super::streams::{Step, Stream};
use super::{Http2, protocol};
use crate::io::context::{Link, Turn};
use crate::io::timeouts::Wait;
use crate::observe::close_reason::Ended;
use crate::observe::metrics::Fault;
use peregrine_driver::{Driver, Stream as _};
use peregrine_proto::h2::Code;
use peregrine_web::Problem;
use peregrine_web::body::BodyError;
use peregrine_web::panics::contained;
use std::task::Context;
use std::time::Duration;

impl Http2 {
    /// Handles the expired deadline of `wait`.
    pub(crate) fn late<D: Driver>(&mut self, wait: Wait, link: &mut Link<'_, D>) -> Turn {
        match wait {
            Wait::Head => Turn::linger(Ended::HeadLate),
            Wait::Streams => {
                self.look_at_deadlines(link);
                Turn::Again
            }
            Wait::Ping => self.ask_peer(link),
            _ => Turn::Again,
        }
    }

    /// Schedules the next PING. Called while streams are open. Each received byte starts the
    /// timeout again.
    pub(super) fn watch_peer<D: Driver>(&mut self, link: &mut Link<'_, D>) {
        let Some(after) = link.door.limits.http2.ping_after else { return };
        let heard = link.io.reader.received();
        if heard != self.heard || link.io.deadlines.of(Wait::Ping).is_none() {
            (self.heard, self.is_asked) = (heard, false);
            link.io.deadlines.set(Wait::Ping, link.worker.driver.now().saturating_add(after));
        }
    }

    /// Sends one PING to a silent client, and closes the connection if the client does not react.
    /// While the client still receives output that was queued before the PING, it cannot have seen
    /// the PING: with a large window, a slow reader may be silent for minutes. Output that the
    /// kernel took at once does not count, because it shows nothing about the client.
    fn ask_peer<D: Driver>(&mut self, link: &mut Link<'_, D>) -> Turn {
        // If too much output is waiting, the server does not receive, and the deadline for sending
        // applies instead.
        if link.io.reader.received() != self.heard || link.is_flooded() {
            return Turn::Again;
        }
        let (taken, waits) = (link.stream.progress(), !link.stream.is_sent());
        let is_taking = taken != self.taken.0 && (waits || self.taken.1);
        if self.is_asked && !is_taking {
            return Turn::close(Ended::PeerSilent);
        }
        if !self.is_asked {
            protocol(&mut self.core).ask(&mut link.io.writer.plain);
        }
        (self.is_asked, self.taken) = (true, (taken, waits));
        let until = link.worker.driver.now().saturating_add(link.door.limits.rate_slack);
        link.io.deadlines.set(Wait::Ping, until);
        Turn::Again
    }

    /// Starts a timer that wakes the connection when content that the core holds back must be sent.
    /// The timer wheel is too coarse for this.
    pub(super) fn await_release<D: Driver>(&mut self, link: &Link<'_, D>, context: &Context<'_>) {
        let driver = &link.worker.driver;
        let Some(until_ms) = protocol(&mut self.core).held_until() else { return };
        // An earlier timer is running. It starts a turn, which calls this method again.
        if self.release_at > driver.now() {
            return;
        }
        let until = Duration::from_millis(until_ms);
        self.release_at = until;
        let (timer, waker) = (driver.clone(), context.waker().clone());
        driver.spawn_boxed(Box::pin(async move {
            timer.sleep_until(until).await;
            waker.wake();
        }));
    }

    /// Schedules a check of a stream's deadlines when the first of them expires.
    pub(super) fn hasten<D: Driver>(&mut self, number: u32, link: &mut Link<'_, D>) {
        let first = self.streams.at(number).deadlines.first();
        if first != Duration::MAX {
            link.io.deadlines.hasten(Wait::Streams, first);
        }
    }

    fn look_at_deadlines<D: Driver>(&mut self, link: &mut Link<'_, D>) {
        let now = link.worker.driver.now();
        self.end_goodbye(now, link);
        for number in self.streams.numbers() {
            let Some(before) = self.streams.get(number).map(|stream| stream.deadlines) else {
                continue;
            };
            self.look_at_stream(number, now, link);
            if let Some(Stream { deadlines, .. }) = self.streams.get(number) {
                // If an expired deadline stayed, the alarm would fire at once, again and again.
                let is_over = deadlines.first() > now || *deadlines != before;
                debug_assert!(is_over, "a deadline passed, and nothing was done");
                self.hasten(number, link);
            }
        }
    }

    /// Stops accepting streams after the peer has had time to receive the GOAWAY.
    fn end_goodbye<D: Driver>(&mut self, now: Duration, link: &mut Link<'_, D>) {
        let told_at = self.core.as_ref().and_then(|core| core.told_at());
        let Some(told_at) = told_at else { return };
        let until = told_at.saturating_add(link.door.limits.drain_idle_timeout);
        if until <= now {
            protocol(&mut self.core).drain_at_once(&mut link.io.writer.plain);
        } else {
            link.io.deadlines.hasten(Wait::Streams, until);
        }
    }

    fn look_at_stream<D: Driver>(&mut self, number: u32, now: Duration, link: &mut Link<'_, D>) {
        let Some(stream) = self.streams.get(number) else { return };
        let deadlines = stream.deadlines;
        let is_handling = matches!(stream.step, Step::Handler);
        if is_handling && deadlines.handler.min(deadlines.exchange) <= now {
            link.worker.observed.limit(match deadlines.handler <= now {
                true => "route_timeout",
                false => "exchange_timeout",
            });
            stream.exchange.tally.fail(Fault::Late);
            stream.exchange.drop_handler();
            stream.deadlines.exchange = Duration::MAX;
            return self.answer(number, Problem::handler_late(), link);
        }
        if deadlines.rest.min(deadlines.exchange) <= now && matches!(stream.step, Step::ReadOn) {
            stream.upload.fail(BodyError::Disconnected);
            return self.throw_away(number, link);
        }
        if deadlines.rest <= now && matches!(stream.step, Step::Frames(_)) {
            link.worker.observed.limit("upgraded_idle_timeout");
            return self.cut_off(number, "its upgraded protocol was idle for too long", link);
        }
        if deadlines.exchange <= now {
            link.worker.observed.limit("exchange_timeout");
            return self.cut_off(number, "its exchange took too long", link);
        }
        // RFC 9113 §8.1: after a complete response, the server may ask the client to stop sending
        // the request, by RST_STREAM with NO_ERROR.
        if matches!(stream.step, Step::Unread) {
            if deadlines.receive.min(deadlines.rest) <= now {
                self.reset_stream(number, Code::NO_ERROR, link);
            }
            return;
        }
        if deadlines.receive <= now {
            self.watch_content(number, link);
            let stream = self.streams.at(number);
            if stream.deadlines.receive <= now {
                link.worker.observed.limit("rate_min");
                stream.upload.fail(BodyError::TooSlow);
                self.discard(number, link);
            }
        }
        if deadlines.send <= now {
            self.watch_window(number, link);
            if self.streams.at(number).deadlines.send <= now {
                link.worker.observed.limit("rate_min");
                self.cut_off(number, "the peer did not open its window", link);
            }
        }
    }

    fn cut_off<D: Driver>(&mut self, number: u32, why: &str, link: &mut Link<'_, D>) {
        let request = self.streams.at(number).exchange.request_name();
        let request = request.map(ToString::to_string).unwrap_or_default();
        let peer = &link.info.peer;
        contained(
            || tracing::debug!(target: "peregrine", request, %peer, "a stream was reset: {why}"),
        );
        self.reset_stream(number, Code::CANCEL, link);
    }
}
