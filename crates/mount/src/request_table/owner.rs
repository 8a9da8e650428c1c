//! The owner of a request's row, which executes the commands of other threads.

use super::{Command, LocalValue, RemoteCall, RequestRef, RequestState, TABLE, THREAD_ID, lock};
use crate::body::SendBoxBody;
use crate::body_channel::{BodyForwarder, LocalTask, Progress};
use crate::call::{CallReply, LocalCall, poll_call};
use crate::original::OriginalRequest;
use peregrine_web::response::AfterResponse;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// Owns a request's values, and does the work that other threads request. Dropping it drops all of
/// the values.
pub(crate) struct RequestOwner {
    request: Arc<RequestRef>,
    call_starter: CallStarter,
    calls: Vec<(LocalCall<'static>, Option<CallReply>)>,
    forwarders: Vec<BodyForwarder>,
    /// Work to do after the response.
    after_response: Vec<AfterResponse>,
}

/// Which code begins the calls that other threads request.
pub(crate) enum CallStarter {
    /// The owner begins them with this function.
    Owner(fn(http::Request<SendBoxBody>) -> LocalCall<'static>),
    /// The code that polls the owner takes them from here and begins them.
    Poller(Vec<RemoteCall>),
    /// No code: the response is complete.
    Closed,
}

impl RequestOwner {
    /// Creates the owner of the request kept in `origin`.
    pub(crate) fn new(origin: OriginalRequest, begins: CallStarter) -> Self {
        let passage = TABLE.with_borrow_mut(|table| {
            table.last_generation += 1;
            let number = table.last_generation;
            let place = table.free.pop().unwrap_or(table.rows.len());
            if place == table.rows.len() {
                table.rows.push(RequestState::default());
            }
            let row = &mut table.rows[place];
            (row.generation, row.original) = (number, Some(origin));
            let mut passage = row.request_ref.take();
            if let Some(again) = passage.as_mut().and_then(Arc::get_mut) {
                again.generation = number;
                again.queue = Mutex::default();
            } else {
                let thread = THREAD_ID.with(|thread| *thread);
                let mailbox = Mutex::default();
                passage = Some(Arc::new(RequestRef {
                    thread_id: thread,
                    row: place,
                    generation: number,
                    queue: mailbox,
                }));
            }
            passage.expect("one was reused or created above")
        });
        Self {
            request: passage,
            call_starter: begins,
            calls: Vec::new(),
            forwarders: Vec::new(),
            after_response: Vec::new(),
        }
    }

    pub(crate) fn request(&self) -> &Arc<RequestRef> {
        &self.request
    }

    /// Takes the calls that the caller must begin.
    pub(crate) fn take_remote_calls(&mut self) -> Vec<RemoteCall> {
        match &mut self.call_starter {
            CallStarter::Poller(asked) => std::mem::take(asked),
            CallStarter::Owner(_) | CallStarter::Closed => Vec::new(),
        }
    }

    /// Stops beginning calls, and returns the original request. Calls in progress continue.
    pub(crate) fn finish_request(&mut self) -> Option<OriginalRequest> {
        self.call_starter = CallStarter::Closed;
        self.request.with_row(|row| row.original.take()).flatten()
    }

    fn handle_command(&mut self, mail: Command) {
        match mail {
            Command::StartCall(call) => match &mut self.call_starter {
                CallStarter::Owner(begin) => {
                    self.calls.push((begin(call.request), Some(call.reply)))
                }
                CallStarter::Poller(asked) => asked.push(*call),
                CallStarter::Closed => {}
            },
            Command::ResumeCall(slot, reply) => {
                if let Some((Some(LocalValue::Call(call)), _)) =
                    self.request.with_row(|row| row.take_value(slot))
                {
                    self.calls.push((call, Some(reply)));
                }
            }
            Command::ForwardBody(slot, bridge) => {
                match self.request.with_row(|row| row.take_value(slot)) {
                    Some((Some(LocalValue::Body(body)), _)) => {
                        self.forwarders.push(BodyForwarder::new(body, bridge))
                    }
                    _ => BodyForwarder::abort(bridge),
                }
            }
            Command::Release(slot) => drop(self.request.with_row(|row| row.take_value(slot))),
        }
    }
}

impl LocalTask for RequestOwner {
    fn poll(&mut self, cx: &mut Context<'_>) -> Progress {
        let mail = {
            let mut mailbox = lock(&self.request.queue);
            mailbox.owner_waker.get_or_insert_with(|| Waker::noop().clone()).clone_from(cx.waker());
            mailbox.queued_calls = 0;
            std::mem::take(&mut mailbox.commands)
        };
        let mut pumped = if mail.is_empty() { Progress::Idle } else { Progress::Advanced };
        mail.into_iter().for_each(|mail| self.handle_command(mail));
        if self.calls.is_empty() && self.forwarders.is_empty() {
            return pumped;
        }
        let before = self.calls.len();
        self.calls.retain_mut(|(call, reply)| poll_call(call, reply, cx));
        if self.calls.len() < before {
            pumped = Progress::Advanced;
        }
        self.forwarders.retain_mut(|pump| {
            if pump.poll(cx) == Progress::Advanced {
                pumped = Progress::Advanced;
            }
            pump.is_active()
        });
        pumped
    }

    /// Whether any value or work is left.
    fn is_active(&self) -> bool {
        let is_idle = self.request.with_row(|row| row.is_empty() && row.after_response.is_empty());
        let is_done =
            self.calls.is_empty() && self.forwarders.is_empty() && self.after_response.is_empty();
        !is_done || !is_idle.unwrap_or(true)
    }

    /// Runs until nothing is left.
    async fn run_to_completion(mut self) {
        std::future::poll_fn(|cx| {
            loop {
                let left = self.request.with_row(|row| std::mem::take(&mut row.after_response));
                self.after_response.extend(left.into_iter().flatten());
                self.after_response.retain_mut(|rest| rest.as_mut().poll(cx).is_pending());
                // A future in `after_response` may wait for work that `poll` does.
                if self.poll(cx) == Progress::Idle {
                    break;
                }
            }
            if !self.is_active() {
                return Poll::Ready(());
            }
            let waker = cx.waker().clone();
            // The old waker is dropped while the table is not borrowed.
            drop(self.request.with_row(|row| row.idle_waker.replace(waker)));
            Poll::Pending
        })
        .await;
    }
}

impl Drop for RequestOwner {
    fn drop(&mut self) {
        let left = self.request.with_row(RequestState::release);
        if left.is_some() {
            TABLE.with_borrow_mut(|table| {
                let place = self.request.row;
                table.rows[place].request_ref = Some(Arc::clone(&self.request));
                table.free.push(place);
            });
        }
        // The values' destructors may use the table.
        drop(left);
        let mut mailbox = lock(&self.request.queue);
        mailbox.is_closed = true;
        let (mail, home) = (std::mem::take(&mut mailbox.commands), mailbox.owner_waker.take());
        drop(mailbox);
        drop(home);
        mail.into_iter().for_each(Command::reject);
    }
}
