//! The owner of a request's row, which executes the commands in the request's queue.

use super::{Command, LocalValue, QueuedCall, RequestRef, RequestState, TABLE, THREAD_ID, lock};
use crate::body::SendBoxBody;
use crate::body_channel::{BodyForwarder, LocalProvider, Progress};
use crate::call::{CallReply, LocalCall, poll_call};
use crate::original::OriginalRequest;
use peregrine_web::response::AfterResponse;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// Owns those values of a request that cannot leave this thread (the original request, calls and
/// bodies), and executes the commands in the request's queue. Dropping the owner drops all of the
/// values.
pub(crate) struct RequestOwner {
    request_ref: Arc<RequestRef>,
    call_starter: CallStarter,
    /// The calls in progress whose outcome another thread awaits.
    calls: Vec<(LocalCall<'static>, Option<CallReply>)>,
    /// The bodies that other threads read.
    forwarders: Vec<BodyForwarder>,
    /// Work to do after the response. [`LocalProvider::run_to_completion`] moves it here from the
    /// row.
    after_response: Vec<AfterResponse>,
}

/// Which code starts the calls that `NextFuture` cannot start itself: those on another thread, and
/// those of a borrowed inner service.
pub(crate) enum CallStarter {
    /// The owner starts them with this function, and polls them.
    Owner(fn(http::Request<SendBoxBody>) -> LocalCall<'static>),
    /// The code that polls the owner takes them from this queue, and starts and polls them.
    Poller(Vec<QueuedCall>),
    /// No further call is started, because the layer has responded.
    Closed,
}

impl RequestOwner {
    /// Stores `original` in a row of this thread's table, and creates the owner of the row.
    pub(crate) fn new(original: OriginalRequest, call_starter: CallStarter) -> Self {
        let request_ref = TABLE.with_borrow_mut(|table| {
            table.last_generation += 1;
            let generation = table.last_generation;
            let row_index = table.free.pop().unwrap_or(table.rows.len());
            if row_index == table.rows.len() {
                table.rows.push(RequestState::default());
            }
            let row = &mut table.rows[row_index];
            (row.generation, row.original) = (generation, Some(original));
            let mut request_ref = row.request_ref.take();
            if let Some(reused) = request_ref.as_mut().and_then(Arc::get_mut) {
                reused.generation = generation;
                reused.queue = Mutex::default();
            } else {
                let thread_id = THREAD_ID.with(|thread_id| *thread_id);
                let queue = Mutex::default();
                request_ref =
                    Some(Arc::new(RequestRef { thread_id, row: row_index, generation, queue }));
            }
            request_ref.expect("one was reused or created above")
        });
        Self {
            request_ref,
            call_starter,
            calls: Vec::new(),
            forwarders: Vec::new(),
            after_response: Vec::new(),
        }
    }

    pub(crate) fn request_ref(&self) -> &Arc<RequestRef> {
        &self.request_ref
    }

    /// Removes and returns the calls that the caller must start.
    pub(crate) fn take_queued_calls(&mut self) -> Vec<QueuedCall> {
        match &mut self.call_starter {
            CallStarter::Poller(calls) => std::mem::take(calls),
            CallStarter::Owner(_) | CallStarter::Closed => Vec::new(),
        }
    }

    /// Rejects calls from now on, and returns the original request. Calls in progress continue.
    pub(crate) fn finish_request(&mut self) -> Option<OriginalRequest> {
        self.call_starter = CallStarter::Closed;
        self.request_ref.with_row(|row| row.original.take()).flatten()
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::StartCall(call) => match &mut self.call_starter {
                CallStarter::Owner(start) => {
                    self.calls.push((start(call.request), Some(call.reply)))
                }
                CallStarter::Poller(calls) => calls.push(*call),
                // Rejects the call: dropping its reply makes the layer's future yield a 500.
                CallStarter::Closed => drop(call),
            },
            Command::ResumeCall(slot, reply) => {
                // `take_value` also returns a waker if the row is now empty. It is not needed here
                // or below, because the owner is being polled.
                if let Some((Some(LocalValue::Call(call)), _)) =
                    self.request_ref.with_row(|row| row.take_value(slot))
                {
                    self.calls.push((call, Some(reply)));
                }
            }
            Command::ForwardBody(slot, channel) => {
                match self.request_ref.with_row(|row| row.take_value(slot)) {
                    Some((Some(LocalValue::Body(body)), _)) => {
                        self.forwarders.push(BodyForwarder::new(body, channel))
                    }
                    _ => BodyForwarder::abort(channel),
                }
            }
            Command::Release(slot) => drop(self.request_ref.with_row(|row| row.take_value(slot))),
        }
    }
}

impl LocalProvider for RequestOwner {
    fn poll(&mut self, cx: &mut Context<'_>) -> Progress {
        let commands = {
            let mut queue = lock(&self.request_ref.queue);
            queue.owner_waker.get_or_insert_with(|| Waker::noop().clone()).clone_from(cx.waker());
            queue.queued_calls = 0;
            std::mem::take(&mut queue.commands)
        };
        let mut progress =
            if commands.is_empty() { Progress::Unchanged } else { Progress::Advanced };
        commands.into_iter().for_each(|command| self.handle_command(command));
        if self.calls.is_empty() && self.forwarders.is_empty() {
            return progress;
        }
        let count_before = self.calls.len();
        self.calls.retain_mut(|(call, reply)| poll_call(call, reply, cx));
        if self.calls.len() < count_before {
            progress = Progress::Advanced;
        }
        self.forwarders.retain_mut(|forwarder| {
            if forwarder.poll(cx) == Progress::Advanced {
                progress = Progress::Advanced;
            }
            forwarder.is_active()
        });
        progress
    }

    /// Whether a value or work is left. While a value is left, its handle can send a command.
    fn is_active(&self) -> bool {
        let is_row_in_use =
            self.request_ref.with_row(|row| !row.is_empty() || !row.after_response.is_empty());
        !self.calls.is_empty()
            || !self.forwarders.is_empty()
            || !self.after_response.is_empty()
            || is_row_in_use.unwrap_or(false)
    }

    /// Runs until no value and no work is left.
    async fn run_to_completion(mut self) {
        std::future::poll_fn(|cx| {
            loop {
                let after_response =
                    self.request_ref.with_row(|row| std::mem::take(&mut row.after_response));
                self.after_response.extend(after_response.into_iter().flatten());
                self.after_response.retain_mut(|work| work.as_mut().poll(cx).is_pending());
                // A future in `after_response` may wait for work that `poll` does.
                if self.poll(cx) == Progress::Unchanged {
                    break;
                }
            }
            if !self.is_active() {
                return Poll::Ready(());
            }
            let waker = cx.waker().clone();
            // The old waker is dropped while the table is not borrowed.
            drop(self.request_ref.with_row(|row| row.completion_waker.replace(waker)));
            Poll::Pending
        })
        .await;
    }
}

impl Drop for RequestOwner {
    fn drop(&mut self) {
        let released = self.request_ref.with_row(RequestState::release);
        if released.is_some() {
            TABLE.with_borrow_mut(|table| {
                let row_index = self.request_ref.row;
                table.rows[row_index].request_ref = Some(Arc::clone(&self.request_ref));
                table.free.push(row_index);
            });
        }
        // Dropped while the table is not borrowed, because destructors of values may borrow it.
        drop(released);
        let mut queue = lock(&self.request_ref.queue);
        queue.is_closed = true;
        let (commands, owner_waker) =
            (std::mem::take(&mut queue.commands), queue.owner_waker.take());
        drop(queue);
        drop(owner_waker);
        commands.into_iter().for_each(Command::reject);
    }
}
