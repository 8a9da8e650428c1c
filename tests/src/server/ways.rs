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
            heads::a_handler_that_waits_holds_up_what_must_follow,
            heads::connections_do_not_mix,
            heads::what_has_no_content_gets_none,
            heads::what_no_route_answers_is_told,
            heads::connect_is_refused,
            heads::too_long_heads_are_told,
            heads::fields_reach_the_handler,
            heads::fields_of_the_connection_are_of_http_1,
            heads::a_request_has_one_host,
            heads::interim_responses_come_before_the_response,
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
            large::shared_content_arrives_whole,
            large::shared_content_is_not_sent_to_head,
            large::shared_content_goes_to_many_at_a_time,
            large::an_endless_stream_of_large_pieces_waits_for_its_reader,
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
            faults::a_panic_in_a_destructor_harms_nobody,
            faults::what_nobody_waits_for_ends,
            faults::a_promised_handler_outlasts_its_peer,
            faults::a_promised_handler_hears_that_its_peer_left,
            faults::a_late_reader_hears_that_its_peer_left,
            ends::idle_connections_are_closed,
            ends::what_is_in_progress_is_finished,
            ends::what_is_busy_at_the_deadline_is_cut_and_named,
            ends::a_second_order_cuts_at_once,
            ends::streams_hear_of_the_order,
            ends::tasks_that_outlive_their_request_are_waited_for,
            ends::a_lame_duck_accepts_and_answers,
            shown::problems_have_the_application_s_form,
            shown::middleware_is_around_every_exchange,
            shown::the_access_log_tells_of_each_exchange,
            shown::handlers_see_their_connection,
            shown::https_on_a_plain_connection_is_misdirected,
            shown::a_host_without_a_certificate_is_misdirected,
            shown::a_mounted_service_is_served,
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
