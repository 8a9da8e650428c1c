//! The list of the cases for every protocol.

/// Tests the rules for every protocol on a driver: `ways!(name, benches)` generates the module
/// `name`, with each case over HTTP/1.1 and HTTP/2, plain and with TLS. `ways!(@plain name,
/// benches)` leaves TLS out.
#[macro_export]
macro_rules! ways {
    ($name:ident, $benches:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "a bench may need no names")]
            use super::*;

            $crate::ways!(@way http1, HTTP1, $benches);
            $crate::ways!(@way http1_tls, HTTP1_TLS, $benches);
            $crate::ways!(@way http2, HTTP2, $benches);
            $crate::ways!(@way http2_tls, HTTP2_TLS, $benches);
        }
    };
    (@plain $name:ident, $benches:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "a bench may need no names")]
            use super::*;

            $crate::ways!(@way http1, HTTP1, $benches);
            $crate::ways!(@way http2, HTTP2, $benches);
        }
    };
    (@way $name:ident, $way:ident, $benches:expr) => {
        $crate::ways!(
            @neutral $name, $way, $benches;
            heads::a_connection_serves_many_requests,
            heads::a_pending_handler_delays_later_responses_only_over_http_1,
            heads::connections_do_not_mix,
            heads::responses_without_content_have_none,
            heads::requests_without_a_route_get_an_error,
            heads::connect_is_refused,
            heads::too_long_heads_are_refused,
            heads::fields_reach_the_handler,
            heads::connection_fields_are_only_for_http_1,
            heads::a_request_has_one_host,
            heads::interim_responses_come_before_the_response,
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
            large::shared_content_arrives_complete,
            large::shared_content_is_not_sent_to_head,
            large::shared_content_goes_to_many_clients_concurrently,
            large::an_endless_stream_of_large_pieces_waits_for_its_reader,
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
            faults::a_panic_in_a_destructor_is_contained,
            faults::unneeded_work_is_cancelled,
            faults::a_run_to_completion_handler_outlives_its_peer,
            faults::a_run_to_completion_handler_is_notified_when_its_peer_disconnects,
            faults::a_late_reader_gets_an_error_when_its_peer_disconnects,
            ends::idle_connections_are_closed,
            ends::requests_in_progress_complete,
            ends::requests_in_progress_at_the_deadline_are_aborted_and_reported,
            ends::a_second_shutdown_request_aborts_at_once,
            ends::streams_are_notified_of_the_shutdown_request,
            ends::the_server_waits_for_tasks_that_outlive_their_request,
            ends::the_server_accepts_and_answers_in_the_lame_duck_phase,
            observability::error_responses_have_the_format_of_the_application,
            observability::middleware_wraps_every_exchange,
            observability::the_access_log_contains_each_exchange,
            observability::handlers_see_their_connection,
            observability::https_on_a_plain_connection_is_misdirected,
            observability::a_host_without_a_certificate_is_misdirected,
            observability::a_mounted_service_is_served,
        );
    };
    (@neutral $name:ident, $way:ident, $benches:expr; $($file:ident :: $case:ident,)*) => {
        mod $name {
            #[allow(unused_imports, reason = "a bench may need no names")]
            use super::*;
            use $crate::server::client::Way;

            $(
                #[test]
                fn $case() {
                    $benches.check(async |bench| {
                        $crate::server::cases::neutral::$file::$case(bench, Way::$way).await;
                    });
                }
            )*
        }
    };
}
