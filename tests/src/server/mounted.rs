//! Runs the server suite with each case's application behind two bridges: converted to a tower
//! service, which is mounted in an application. All guarantees must hold there too.

use crate::server::{AnyBench, KernelBenches, SimulatedBenches};
use peregrine::tower::{AppService, Mount, tower};
use peregrine::web::built::BuiltApp;
use peregrine::web::connection::ConnectionInfo;
use peregrine::web::{App, BuildError};
use peregrine::{IntoBuiltApp, Limits};

/// Puts every case's application behind the bridges to tower and back.
#[derive(Clone, Debug)]
pub struct MountedBenches<B>(pub B);

impl MountedBenches<SimulatedBenches> {
    /// Runs `case` as without the bridges.
    ///
    /// # Panics
    /// If the case fails.
    pub fn check(&self, case: impl AsyncFn(&AnyBench)) {
        self.0.run(&case, true);
    }
}

impl MountedBenches<KernelBenches> {
    /// Runs `case` as without the bridges.
    ///
    /// # Panics
    /// If the case fails.
    pub fn check(&self, case: impl AsyncFn(&AnyBench)) {
        self.0.run(&case, true);
    }
}

/// An application as a mounted tower service.
pub(super) struct Mounted<A>(pub(super) A, pub(super) Limits);

impl<A: IntoBuiltApp> IntoBuiltApp for Mounted<A> {
    fn into_built_app(self) -> Result<BuiltApp, BuildError> {
        let service = AppService::new(self.0.into_built_app()?);
        let service = service.body_limit(self.1.body_bytes_max);
        App::new().mount("/", tower(service).extension(ConnectionInfo::clone)).build()
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
            requests::no_request_is_answered_after_connection_close,
            requests::every_form_of_request_target_is_accepted,
            requests::connections_do_not_mix,
            bodies::a_body_of_known_length_is_echoed,
            bodies::a_chunked_body_is_echoed,
            bodies::a_large_body_flows_through,
            bodies::the_100_is_sent_when_the_handler_reads,
            bodies::a_final_status_instead_of_the_100_ends_the_connection,
            bodies::a_small_unread_body_is_discarded,
            bodies::a_large_unread_body_ends_the_connection,
            bodies::a_body_beyond_its_limit_is_a_413,
            bodies::trailers_reach_the_handler,
            bodies::a_truncated_body_never_looks_complete,
            bodies::a_malformed_chunk_is_a_400,
            bodies::a_handler_that_does_not_read_blocks_its_client,
            responses::a_stream_is_sent_in_chunks,
            responses::a_large_response_arrives_complete,
            responses::an_endless_stream_waits_for_its_reader,
            responses::a_slow_reader_is_served,
            responses::a_stream_ends_when_its_reader_disconnects,
            responses::a_half_closed_reader_gets_the_complete_stream,
            responses::a_quiet_stream_is_cancelled_when_its_client_closes,
            handlers::a_half_closed_peer_has_not_disconnected,
            handlers::a_pending_handler_is_cancelled_when_its_client_closes,
            handlers::many_handlers_wait_concurrently,
            handlers::handlers_may_use_tokio,
            timeouts::a_slow_body_is_a_408,
            timeouts::a_body_does_not_time_out_while_it_is_not_read,
            timeouts::an_unread_body_must_arrive_soon,
            timeouts::the_timeout_of_a_route_applies,
            timeouts::a_stalled_reader_is_disconnected_in_time,
            shutdown::requests_in_progress_are_finished,
            shutdown::an_abort_ends_everything,
            upgrades::an_upgraded_connection_carries_bytes_both_ways,
            upgrades::the_upgraded_protocol_may_send_first_and_close_first,
            upgrades::an_unrequested_upgrade_is_a_500,
            upgrades::an_upgraded_connection_ends_with_its_peer,
            secure::requests_work_inside_tls,
            secure::close_notify_cancels_pending_handlers,
            secure::handlers_see_the_client_certificate,
            run_to_completion::a_silent_upgraded_connection_is_closed,
            run_to_completion::an_upgraded_protocol_may_await_the_shutdown_request,
            run_to_completion::a_handler_that_ignores_the_shutdown_request_is_aborted_in_time,
            shutdown::tasks_and_streams_may_await_the_shutdown_request,
            late_bodies::a_late_body_that_is_dropped_is_discarded,
            late_bodies::a_late_reader_gets_an_error_when_its_peer_disconnects,
            late_bodies::a_slow_body_times_out_after_the_response_too,
            late_bodies::a_late_body_that_is_not_read_times_out,
            late_bodies::a_drain_waits_for_a_body_that_is_read_after_its_response,
            late_bodies::a_reset_is_noticed_while_a_body_buffer_is_full,
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
            heads::a_pending_handler_delays_later_responses_only_over_http_1,
            heads::connections_do_not_mix,
            heads::responses_without_content_have_none,
            heads::requests_without_a_route_get_an_error,
            heads::connect_is_refused,
            heads::too_long_heads_are_refused,
            heads::connection_fields_are_only_for_http_1,
            heads::a_request_has_one_host,
            heads::the_100_is_sent_when_the_handler_reads,
            heads::an_upgrade_works_only_over_http_1,
            heads::response_fields_arrive,
            bodies::a_body_may_arrive_in_any_pieces,
            bodies::large_bodies_flow_both_ways,
            bodies::a_body_beyond_its_limit_is_a_413,
            bodies::the_innermost_body_limit_applies,
            bodies::trailers_reach_the_handler,
            bodies::trailers_follow_a_response,
            bodies::an_early_response_ends_its_request,
            bodies::a_short_body_remainder_is_discarded,
            bodies::a_body_may_be_read_after_the_response,
            bodies::a_handler_that_does_not_read_blocks_its_client,
            bodies::a_slow_stream_arrives_piece_by_piece,
            bodies::an_endless_stream_waits_for_its_reader,
            times::a_silent_connection_is_closed,
            times::an_idle_connection_is_closed,
            times::a_slow_head_times_out,
            times::a_slow_body_is_a_408,
            times::a_steady_body_does_not_time_out,
            times::a_body_does_not_time_out_while_it_is_not_read,
            times::a_late_handler_is_a_503,
            times::an_exchange_has_a_timeout,
            times::an_old_connection_is_closed,
            times::a_stalled_reader_is_disconnected,
            faults::a_panic_is_a_500,
            faults::a_failed_response_is_truncated,
            faults::unneeded_work_is_cancelled,
            faults::a_late_reader_gets_an_error_when_its_peer_disconnects,
            ends::idle_connections_are_closed,
            ends::requests_in_progress_complete,
            ends::streams_are_notified_of_the_shutdown_request,
            ends::the_server_waits_for_tasks_that_outlive_their_request,
            ends::the_server_accepts_and_answers_in_the_lame_duck_phase,
            observability::middleware_wraps_every_exchange,
            observability::the_access_log_contains_each_exchange,
            observability::handlers_see_their_connection,
            observability::https_on_a_plain_connection_is_misdirected,
            observability::a_host_without_a_certificate_is_misdirected,
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
            http2::a_window_that_stays_closed_causes_a_reset,
            tunnels::a_tunnel_carries_bytes_both_ways,
            tunnels::a_tunnel_may_send_first_and_close_first,
            tunnels::a_route_without_the_protocol_refuses_it,
            tunnels::a_tunnel_ends_with_its_peer,
        );
    };
}
