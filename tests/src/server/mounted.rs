//! The same servers with the application behind two bridges: as a tower service, mounted in an
//! application. What holds without them must hold with them.

use crate::server::bench::Bench;
use crate::server::{KernelBench, KernelBenches, SimulatedBench, SimulatedBenches};
use peregrine::tower::{LocalService, Mount, tower};
use peregrine::web::application::Application;
use peregrine::web::connection::ConnectionInfo;
use peregrine::web::{App, BuildError};
use peregrine::{IntoApplication, Limits};
use peregrine_tls::Tls;
use std::time::Duration;

/// Puts the application of every case behind the bridges to tower and back.
#[derive(Clone, Debug)]
pub struct MountedBenches<B>(pub B);

/// A bench whose applications are mounted.
pub struct MountedBench<'b, B>(&'b B);

impl MountedBenches<SimulatedBenches> {
    /// Runs `case` as without the bridges.
    ///
    /// # Panics
    /// The case fails.
    pub fn check(&self, case: impl AsyncFn(&MountedBench<'_, SimulatedBench>)) {
        self.0.check(async |bench| case(&MountedBench(bench)).await);
    }
}

impl MountedBenches<KernelBenches> {
    /// Runs `case` as without the bridges.
    ///
    /// # Panics
    /// The case fails.
    pub fn check(&self, case: impl AsyncFn(&MountedBench<'_, KernelBench>)) {
        self.0.check(async |bench| case(&MountedBench(bench)).await);
    }
}

/// An application as a tower service, mounted.
struct Mounted<A>(A, Limits);

impl<A: IntoApplication> IntoApplication for Mounted<A> {
    fn into_application(self) -> Result<Application, BuildError> {
        let service = LocalService::new(self.0.into_application()?);
        let service = service.body_limit(self.1.body_bytes_max);
        App::new().mount("/", tower(service).extension(ConnectionInfo::clone)).build()
    }
}

impl<B: Bench> Bench for MountedBench<'_, B> {
    type Server = B::Server;
    type Wire = B::Wire;

    fn start<A, M>(&self, limits: Limits, tls: Option<Tls>, make: M) -> B::Server
    where
        A: IntoApplication + 'static,
        M: Fn() -> A + Clone + Send + 'static,
    {
        let kept = limits.clone();
        self.0.start(limits, tls, move || Mounted(make(), kept.clone()))
    }

    async fn sleep(&self, time: Duration) {
        self.0.sleep(time).await;
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    fn calm(&self) {
        self.0.calm();
    }

    fn is_calm(&self) -> bool {
        self.0.is_calm()
    }

    fn is_virtual(&self) -> bool {
        self.0.is_virtual()
    }

    fn run_out_of_descriptors(&self) {
        self.0.run_out_of_descriptors();
    }

    fn has_resets(&self) -> bool {
        self.0.has_resets()
    }

    fn choose(&self, limit: usize) -> usize {
        self.0.choose(limit)
    }
}

/// Tests a server whose application is mounted: `mounted!(name, benches)` makes the module `name`.
///
/// Left out are the cases in which an application speaks to the server beside its requests and
/// responses: routes that outlast their peer, and routes named in the report of a shutdown.
#[macro_export]
macro_rules! mounted {
    ($name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $crate::server::MountedBenches($benches);
            requests::a_connection_is_kept_alive,
            requests::pipelined_requests_are_answered_in_order_and_at_once,
            requests::replies_do_not_wait_for_a_later_handler,
            requests::a_half_closed_pipeline_is_answered_to_its_end,
            requests::pipelining_beyond_the_output_limit_loses_nothing,
            requests::head_is_answered_without_content,
            requests::http_1_0_persists_only_if_asked,
            requests::a_stream_to_http_1_0_ends_with_the_connection,
            requests::nothing_is_answered_after_close,
            requests::every_form_of_target_is_understood,
            requests::connections_do_not_mix,
            bodies::a_body_of_known_length_is_echoed,
            bodies::a_chunked_body_is_echoed,
            bodies::a_large_body_flows_through,
            bodies::the_100_comes_if_the_handler_reads,
            bodies::a_final_status_instead_of_the_100_ends_the_connection,
            bodies::a_small_unread_body_is_passed_over,
            bodies::a_large_unread_body_ends_the_connection,
            bodies::a_body_beyond_its_limit_is_a_413,
            bodies::the_innermost_limit_of_a_body_counts,
            bodies::trailers_reach_the_handler,
            bodies::a_truncated_body_never_passes_for_a_whole_one,
            bodies::a_malformed_chunk_is_a_400,
            bodies::a_handler_that_does_not_read_holds_its_client_back,
            responses::a_stream_is_sent_in_chunks,
            responses::a_large_response_arrives_whole,
            responses::a_slow_stream_arrives_piece_by_piece,
            responses::a_stream_that_fails_cuts_the_connection,
            responses::an_endless_stream_waits_for_its_reader,
            responses::a_slow_reader_is_served,
            responses::a_stream_ends_when_its_reader_leaves,
            responses::a_half_closed_reader_gets_the_whole_stream,
            handlers::a_panic_is_a_500_and_harms_nobody_else,
            handlers::a_late_handler_is_a_503,
            handlers::a_handler_ends_when_its_peer_breaks_off,
            handlers::a_handler_ends_when_its_peer_closes,
            handlers::a_half_closed_peer_has_not_left,
            handlers::many_handlers_wait_at_a_time,
            handlers::handlers_may_use_tokio,
            timeouts::a_slow_body_is_a_408,
            timeouts::a_body_is_not_late_while_nobody_reads_it,
            timeouts::the_rest_of_an_unread_body_must_come_soon,
            timeouts::a_route_s_timeout_is_kept,
            timeouts::a_stalled_reader_is_cut_off_in_time,
            shutdown::requests_in_progress_are_finished,
            shutdown::streams_in_progress_are_finished,
            shutdown::uploads_in_progress_are_finished,
            shutdown::a_cut_ends_everything,
            upgrades::an_upgraded_connection_carries_bytes_both_ways,
            upgrades::the_other_protocol_may_begin_and_end,
            upgrades::an_upgrade_that_nobody_asked_for_is_a_500,
            upgrades::an_upgraded_connection_ends_with_its_peer,
            secure::requests_work_inside_tls,
            promised::an_upgraded_connection_that_is_silent_ends,
            promised::an_upgraded_protocol_may_await_the_order,
            promised::who_ignores_the_order_is_cut_in_time,
            shutdown::tasks_and_streams_may_await_the_order,
            kept::a_body_may_be_read_after_the_response,
            kept::a_body_that_is_read_no_more_is_thrown_away,
            kept::a_late_reader_hears_that_its_peer_left,
            kept::a_slow_peer_is_late_after_its_response_too,
            kept::a_body_that_is_kept_and_not_read_is_given_up,
            kept::a_drain_waits_for_a_body_that_is_read_after_its_response,
            kept::a_reset_is_noticed_while_a_body_has_no_room,
        );
    };
}

/// The same over HTTP/2: `mounted_http2!(name, benches)` makes the module `name`.
#[macro_export]
macro_rules! mounted_http2 {
    ($name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $crate::server::MountedBenches($benches);
            http2::requests_are_answered,
            http2::streams_do_not_wait_for_each_other,
            http2::small_pieces_of_a_body_are_one_body,
            http2::trailers_reach_the_handler,
            http2::the_100_comes_if_the_handler_reads,
            http2::an_early_answer_ends_its_request,
            http2::a_body_may_be_read_after_the_response,
            http2::panics_and_timeouts_are_told_on_their_stream,
            http2::a_broken_connection_ends_all_handlers,
            http2::a_drain_finishes_streams,
            http2::a_slow_body_is_a_408,
            http2::a_window_that_stays_shut_is_a_reset,
            tunnels::a_stream_in_another_protocol_carries_bytes_both_ways,
            tunnels::the_other_protocol_may_begin_and_end_on_a_stream,
            tunnels::a_resource_without_the_protocol_refuses_it,
            tunnels::another_protocol_ends_with_its_peer,
            tunnels::a_panic_in_another_protocol_resets_its_stream,
        );
    };
}
