//! Detects that the peer has disconnected while the application works on a response.

use super::{Http1, Step};
use crate::io::context::{For, Link, Turn};
use crate::io::timeouts::Wait;
use crate::observe::close_reason::Ended;
use peregrine_driver::Driver;
use peregrine_web::turn;

/// Whether the application has produced content in this turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    None,
    Some,
}

impl Http1 {
    /// The peer has ended its sending side after a complete request. Nearly every client that does
    /// so has closed its socket, so the handler or stream is cancelled, unless the server is
    /// configured to serve clients that only shut down their sending side.
    pub(super) fn on_peer_end<D: Driver>(
        &mut self,
        progress: Progress,
        link: &mut Link<'_, D>,
    ) -> Turn {
        if link.door.limits.http1.half_close {
            // Once a response has begun, no interim response can be sent; the next write shows
            // whether the peer is still connected.
            let is_probed = link.io.deadlines.of(Wait::Probe).is_some();
            if self.can_probe && !is_probed && matches!(self.step, Step::Handler) {
                self.probe(link);
            }
        } else if self.is_open_ended() && !turn::is_asked() {
            return match progress {
                // The application may have yielded although it has more, as Tokio's cooperative
                // budget makes it do: the next poll shows that.
                Progress::Some => Turn::Yield(For::default()),
                Progress::None => Turn::close(Ended::PeerLeft),
            };
        }
        self.watch_peer(false, link);
        Turn::Wait(For::default())
    }

    /// Returns whether the application still decides how much is sent: a handler without a
    /// response, or a stream of unknown length.
    fn is_open_ended(&self) -> bool {
        match &self.step {
            Step::Handler => true,
            Step::Stream(streaming) => streaming.is_open_ended(),
            Step::Head | Step::Whole(_) | Step::ReadOn { .. } | Step::Unread => false,
        }
    }

    /// While nothing is received, because the body's reader takes nothing or the read-ahead limit
    /// is reached, only the kernel knows whether the peer has reset the connection, so the
    /// server checks from time to time.
    pub(super) fn watch_peer<D: Driver>(&mut self, is_receiving: bool, link: &mut Link<'_, D>) {
        if !is_receiving {
            self.probes.begin(|| link.worker.driver.now(), &mut link.io.deadlines);
        }
    }

    /// With `half_close`, a peer that has ended its sending side may have disconnected, or may wait
    /// for its response. TCP shows the difference only to a side that sends, so the server sends an
    /// interim response.
    // RFC 9110 §15.2: a client must be able to parse interim responses that it does not expect.
    fn probe<D: Driver>(&mut self, link: &mut Link<'_, D>) {
        link.protocol.send_interim(102, std::iter::empty(), &mut link.io.writer.plain);
        self.probes.set(link.worker.driver.now(), &mut link.io.deadlines);
    }
}
