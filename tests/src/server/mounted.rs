//! The same servers with the application behind two bridges: converted to a tower service, and
//! mounted in an application. The same rules must hold.

use crate::server::bench::{Bench, Gate};
use crate::server::{KernelBench, KernelBenches, SimulatedBench, SimulatedBenches};
use peregrine::tower::{AppService, Mount, tower};
use peregrine::web::built::BuiltApp;
use peregrine::web::connection::ConnectionInfo;
use peregrine::web::{App, BuildError};
use peregrine::{IntoBuiltApp, Limits};
use peregrine_tls::TlsConfig;
use std::time::Duration;

/// Puts every case's application behind the bridges to tower and back.
#[derive(Clone, Debug)]
pub struct MountedBenches<B>(pub B);

/// A bench whose applications are mounted.
pub struct MountedBench<'b, B>(&'b B);

impl MountedBenches<SimulatedBenches> {
    /// Runs `case` as without the bridges.
    ///
    /// # Panics
    /// If the case fails.
    pub fn check(&self, case: impl AsyncFn(&MountedBench<'_, SimulatedBench>)) {
        self.0.check(async |bench| case(&MountedBench(bench)).await);
    }
}

impl MountedBenches<KernelBenches> {
    /// Runs `case` as without the bridges.
    ///
    /// # Panics
    /// If the case fails.
    pub fn check(&self, case: impl AsyncFn(&MountedBench<'_, KernelBench>)) {
        self.0.check(async |bench| case(&MountedBench(bench)).await);
    }
}

/// An application as a mounted tower service.
struct Mounted<A>(A, Limits);

impl<A: IntoBuiltApp> IntoBuiltApp for Mounted<A> {
    fn into_built_app(self) -> Result<BuiltApp, BuildError> {
        let service = AppService::new(self.0.into_built_app()?);
        let service = service.body_limit(self.1.body_bytes_max);
        App::new().mount("/", tower(service).extension(ConnectionInfo::clone)).build()
    }
}

impl<B: Bench> Bench for MountedBench<'_, B> {
    type Server = B::Server;
    type Wire = B::Wire;

    fn start_behind<A, M>(
        &self,
        gate: Gate,
        limits: Limits,
        tls: Option<TlsConfig>,
        make: M,
    ) -> B::Server
    where
        A: IntoBuiltApp + 'static,
        M: Fn() -> A + Clone + Send + 'static,
    {
        let kept = limits.clone();
        self.0.start_behind(gate, limits, tls, move || Mounted(make(), kept.clone()))
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

/// Tests a server whose application is mounted: `mounted!(name, benches)` generates the module
/// `name`.
///
/// It omits the cases in which an application affects the server other than by its requests and
/// responses: routes that outlast their peer, and route names in the shutdown report.
#[macro_export]
macro_rules! mounted {
    ($name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $crate::server::MountedBenches($benches);
            requests::pipelined_requests_are_answered_in_order_and_at_once,
            requests::replies_do_not_wait_for_a_later_handler,
            requests::a_half_closed_pipeline_is_answered_to_its_end,
            requests::ready_handlers_answer_a_half_closed_pipeline,
            requests::pipelining_beyond_the_output_limit_loses_nothing,
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
            bodies::trailers_reach_the_handler,
            bodies::a_truncated_body_never_passes_for_a_whole_one,
            bodies::a_malformed_chunk_is_a_400,
            bodies::a_handler_that_does_not_read_holds_its_client_back,
            responses::a_stream_is_sent_in_chunks,
            responses::a_large_response_arrives_whole,
            responses::an_endless_stream_waits_for_its_reader,
            responses::a_slow_reader_is_served,
            responses::a_stream_ends_when_its_reader_leaves,
            responses::a_half_closed_reader_gets_the_whole_stream,
            responses::a_quiet_stream_is_cancelled_when_its_client_closes,
            handlers::a_half_closed_peer_has_not_left,
            handlers::a_pending_handler_is_cancelled_when_its_client_closes,
            handlers::many_handlers_wait_at_a_time,
            handlers::handlers_may_use_tokio,
            timeouts::a_slow_body_is_a_408,
            timeouts::a_body_is_not_late_while_nobody_reads_it,
            timeouts::the_rest_of_an_unread_body_must_come_soon,
            timeouts::a_route_s_timeout_is_kept,
            timeouts::a_stalled_reader_is_cut_off_in_time,
            shutdown::requests_in_progress_are_finished,
            shutdown::a_cut_ends_everything,
            upgrades::an_upgraded_connection_carries_bytes_both_ways,
            upgrades::the_other_protocol_may_begin_and_end,
            upgrades::an_upgrade_that_nobody_asked_for_is_a_500,
            upgrades::an_upgraded_connection_ends_with_its_peer,
            secure::requests_work_inside_tls,
            secure::close_notify_cancels_what_waits,
            secure::handlers_know_who_a_client_with_a_certificate_is,
            promised::an_upgraded_connection_that_is_silent_ends,
            promised::an_upgraded_protocol_may_await_the_order,
            promised::who_ignores_the_order_is_cut_in_time,
            shutdown::tasks_and_streams_may_await_the_order,
            kept::a_body_that_is_read_no_more_is_thrown_away,
            kept::a_late_reader_hears_that_its_peer_left,
            kept::a_slow_peer_is_late_after_its_response_too,
            kept::a_body_that_is_kept_and_not_read_is_given_up,
            kept::a_drain_waits_for_a_body_that_is_read_after_its_response,
            kept::a_reset_is_noticed_while_a_body_has_no_room,
        );
    };
}

/// The rules for every protocol, with a mounted application: `mounted_ways!(name, benches)`
/// generates the module `name`. It also omits the cases about the server's own problems, about
/// panics in destructors of a handler's future, which the mounted service owns, and about the
/// `Host` field, which the bridge adds.
#[macro_export]
macro_rules! mounted_ways {
    ($name:ident, $benches:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "a bench may need no names")]
            use super::*;

            $crate::mounted_ways!(@way http1, HTTP1, $benches);
            $crate::mounted_ways!(@way http2, HTTP2, $benches);
        }
    };
    (@way $name:ident, $way:ident, $benches:expr) => {
        $crate::ways!(
            @neutral $name, $way, $crate::server::MountedBenches($benches);
            heads::a_connection_serves_many_requests,
            heads::a_handler_that_waits_holds_up_what_must_follow,
            heads::connections_do_not_mix,
            heads::what_has_no_content_gets_none,
            heads::what_no_route_answers_is_told,
            heads::connect_is_refused,
            heads::too_long_heads_are_told,
            heads::fields_of_the_connection_are_of_http_1,
            heads::a_request_has_one_host,
            heads::the_100_comes_if_the_handler_reads,
            heads::an_upgrade_is_of_http_1,
            heads::fields_of_responses_arrive,
            bodies::a_body_may_come_in_any_pieces,
            bodies::large_bodies_flow_both_ways,
            bodies::a_body_beyond_its_limit_is_a_413,
            bodies::the_innermost_limit_of_a_body_counts,
            bodies::trailers_reach_the_handler,
            bodies::trailers_follow_a_response,
            bodies::an_early_answer_ends_its_request,
            bodies::a_short_rest_of_a_body_is_passed_over,
            bodies::a_body_may_be_read_after_the_response,
            bodies::a_handler_that_does_not_read_holds_its_client_back,
            bodies::a_slow_stream_arrives_piece_by_piece,
            bodies::an_endless_stream_waits_for_its_reader,
            times::a_silent_connection_is_closed,
            times::an_idle_connection_is_closed,
            times::a_slow_head_is_cut_off,
            times::a_slow_body_is_a_408,
            times::a_steady_body_is_not_late,
            times::a_body_is_not_late_while_nobody_reads_it,
            times::a_late_handler_is_a_503,
            times::an_exchange_has_its_time,
            times::an_old_connection_is_closed,
            times::a_stalled_reader_is_cut_off,
            faults::a_panic_is_a_500,
            faults::a_response_that_fails_is_cut_off,
            faults::what_nobody_waits_for_ends,
            faults::a_late_reader_hears_that_its_peer_left,
            ends::idle_connections_are_closed,
            ends::what_is_in_progress_is_finished,
            ends::streams_hear_of_the_order,
            ends::tasks_that_outlive_their_request_are_waited_for,
            ends::a_lame_duck_accepts_and_answers,
            shown::middleware_is_around_every_exchange,
            shown::the_access_log_tells_of_each_exchange,
            shown::handlers_see_their_connection,
            shown::https_on_a_plain_connection_is_misdirected,
            shown::a_host_without_a_certificate_is_misdirected,
        );
    };
}

/// HTTP/2 cases: `mounted_http2!(name, benches)` generates the module `name`.
#[macro_export]
macro_rules! mounted_http2 {
    ($name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $crate::server::MountedBenches($benches);
            http2::a_broken_connection_ends_all_handlers,
            http2::a_drain_finishes_streams,
            http2::a_window_that_stays_shut_is_a_reset,
            tunnels::a_stream_in_another_protocol_carries_bytes_both_ways,
            tunnels::the_other_protocol_may_begin_and_end_on_a_stream,
            tunnels::a_resource_without_the_protocol_refuses_it,
            tunnels::another_protocol_ends_with_its_peer,
        );
    };
}
