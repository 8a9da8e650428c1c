//! The server's guarantees, tested on every driver.
//!
//! [`server!`](macro@crate::server) generates a module with one test per guarantee for the driver
//! that a bench provides: [`SimulatedBenches`] for the in-memory network, where each test repeats
//! under many seeds with virtual time, [`KernelBenches`] for the machine's sockets. A case is
//! written once: it is asynchronous, and on a kernel its clients block.
//!
//! Start with `bench.rs`, then any file of `cases/`.

pub mod app;
mod attacks;
pub mod authority;
pub mod bench;
pub mod callers;
pub mod cases;
pub mod client;
pub mod events;
pub mod held;
pub mod hours;
mod kept;
mod kernel;
pub mod logged;
mod mounted;
mod overload;
pub mod peer;
pub mod promises;
pub mod random;
pub mod reply;
pub mod secure;
pub mod shared;
mod simulated;
pub mod streams;
pub mod told;
pub mod traced;
mod trouble;
mod ways;
pub mod websockets;

pub use kernel::{KernelBench, KernelBenches, SocketWire};
pub use mounted::{MountedBench, MountedBenches};
pub use simulated::{SimulatedBench, SimulatedBenches, SimulatedWire};

/// Tests the server on a driver: `server!(name, benches)` generates the module `name`.
#[macro_export]
macro_rules! server {
    ($name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $benches;
            surprises::an_answer_arrives_though_its_body_was_cut_short,
            surprises::what_was_delivered_is_not_named_as_cut,
            surprises::an_end_is_noticed_before_the_body_is_asked_for,
            surprises::the_rest_of_an_unread_body_holds_no_drain_up,
            surprises::close_notify_within_a_body_is_answered,
            requests::pipelined_requests_are_answered_in_order_and_at_once,
            requests::replies_do_not_wait_for_a_later_handler,
            requests::a_half_closed_pipeline_is_answered_to_its_end,
            requests::ready_handlers_answer_a_half_closed_pipeline,
            requests::pipelining_beyond_the_output_limit_loses_nothing,
            requests::http_1_0_persists_only_if_asked,
            requests::a_stream_to_http_1_0_ends_with_the_connection,
            requests::nothing_is_answered_after_close,
            requests::every_form_of_target_is_understood,
            requests::a_broken_rule_is_told_and_ends_the_connection,
            requests::a_head_may_come_in_any_pieces,
            requests::a_head_that_is_cut_short_is_answered,
            requests::connections_do_not_mix,
            bodies::a_body_of_known_length_is_echoed,
            bodies::a_chunked_body_is_echoed,
            bodies::a_large_body_flows_through,
            bodies::a_slow_handler_gets_a_large_body_whole,
            bodies::a_request_behind_a_large_body_is_answered,
            bodies::a_large_body_that_is_cut_short_is_noticed,
            bodies::small_requests_are_answered_beside_large_bodies,
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
            responses::trailers_are_the_end,
            responses::a_large_response_arrives_whole,
            responses::an_endless_stream_waits_for_its_reader,
            responses::a_slow_reader_is_served,
            responses::a_stream_ends_when_its_reader_leaves,
            responses::a_half_closed_reader_gets_the_whole_stream,
            responses::a_quiet_stream_is_cancelled_when_its_client_closes,
            responses::a_half_closed_reader_gets_a_body_of_known_length,
            handlers::a_half_closed_peer_has_not_left,
            handlers::a_half_closed_http_1_0_peer_gets_its_answer,
            handlers::a_pending_handler_is_cancelled_when_its_client_closes,
            handlers::a_handler_that_runs_to_its_end_is_not_cancelled,
            handlers::many_handlers_wait_at_a_time,
            handlers::handlers_may_use_tokio,
            timeouts::a_silent_connection_is_closed,
            timeouts::a_slow_head_is_a_408,
            timeouts::a_slow_body_is_a_408,
            timeouts::a_conversation_may_be_silent,
            timeouts::a_conversation_that_died_ends,
            timeouts::a_body_is_not_late_while_nobody_reads_it,
            timeouts::the_rest_of_an_unread_body_must_come_soon,
            timeouts::an_idle_connection_is_closed,
            timeouts::an_old_connection_is_closed,
            timeouts::a_slow_handshake_is_cut_off,
            timeouts::a_route_s_timeout_is_kept,
            timeouts::a_stalled_reader_is_cut_off_in_time,
            limits::one_connection_too_many_waits,
            limits::listeners_share_the_last_place,
            limits::a_long_target_is_a_414,
            limits::a_large_head_is_a_431,
            limits::accepting_goes_on_after_errors,
            shutdown::idle_connections_are_closed,
            shutdown::requests_in_progress_are_finished,
            shutdown::nobody_is_accepted_after_the_order,
            shutdown::what_is_busy_at_the_deadline_is_cut_and_named,
            shutdown::a_cut_ends_everything,
            shutdown::tasks_without_an_end_are_cut_at_the_deadline_and_counted,
            shutdown::tasks_may_be_given_less_time_than_connections,
            shutdown::a_second_order_cuts_tasks_at_once,
            shutdown::tasks_of_what_the_application_holds_end_with_it,
            shutdown::tasks_and_streams_may_await_the_order,
            shutdown::a_time_may_be_without_an_end,
            upgrades::an_upgraded_connection_carries_bytes_both_ways,
            upgrades::the_other_protocol_may_begin_and_end,
            upgrades::an_upgrade_that_nobody_asked_for_is_a_500,
            upgrades::an_upgraded_connection_ends_with_its_peer,
            secure::requests_work_inside_tls,
            secure::sessions_are_resumed,
            secure::pipelining_works_inside_tls,
            secure::close_notify_is_answered,
            secure::close_notify_cancels_what_waits,
            secure::a_truncated_record_is_no_end,
            secure::plain_http_on_the_tls_port_is_told_so,
            secure::garbage_instead_of_tls_harms_nobody,
            secure::a_handshake_may_be_left,
            secure::handlers_know_who_a_client_with_a_certificate_is,
            secure::a_certificate_that_is_refused_is_counted_by_what_is_wrong_with_it,
            secure::a_new_certificate_disturbs_no_connection_and_no_handshake,
            promised::a_handler_that_runs_to_its_end_hears_that_its_body_broke_off,
            promised::a_fault_of_tls_leaves_a_promised_handler_alone,
            promised::an_upgraded_connection_that_is_silent_ends,
            promised::an_upgraded_protocol_may_await_the_order,
            promised::who_ignores_the_order_is_cut_in_time,
            promised::an_upgrade_inside_tls_ends_with_its_peer,
            endings::an_answer_whose_body_is_not_read_says_that_it_closes,
            endings::no_connection_ends_without_saying_so,
            endings::the_last_answer_arrives_although_more_requests_come,
            endings::an_answer_waits_for_a_peer_that_sends_slowly,
            endings::a_peer_that_does_not_go_on_is_left,
            buffers::a_stream_of_empty_pieces_starves_nobody,
            drain::requests_that_cross_the_order_are_answered,
            drain::a_full_server_answers_everybody_who_waits,
            drain::a_cut_ends_a_full_server,
            drain::a_lame_duck_accepts_and_answers,
            kept::a_body_that_is_read_no_more_is_thrown_away,
            kept::a_late_reader_hears_that_its_peer_left,
            kept::a_slow_peer_is_late_after_its_response_too,
            kept::a_body_that_is_kept_and_not_read_is_given_up,
            kept::a_drain_waits_for_a_body_that_is_read_after_its_response,
            kept::a_reset_is_noticed_while_a_body_has_no_room,
            events::pieces_arrive_one_by_one_on_every_protocol,
            events::events_arrive_one_by_one_on_every_protocol,
            events::pushed_events_arrive_on_every_protocol,
            events::a_drain_ends_streams_of_events,
            events::a_goodbye_is_the_last_event,
            events::a_stream_may_go_on_through_a_drain,
            events::a_sender_hears_of_a_drain,
            events::a_sender_hears_of_a_reader_that_left,
            events::a_reader_of_a_quiet_stream_that_closes_is_noticed,
            events::who_takes_no_events_holds_the_producer_back_and_is_ended,
            websockets::messages_of_all_sizes_are_echoed,
            websockets::fragments_are_one_message,
            websockets::pings_are_answered_while_the_handler_waits,
            websockets::a_handler_may_ping,
            websockets::a_handler_closes_with_a_code,
            websockets::broken_rules_are_told,
            websockets::an_end_without_a_close_frame_ends_the_handler,
            websockets::messages_are_compressed,
            websockets::a_bomb_is_a_1009,
            websockets::a_panic_of_the_handler_is_a_1011,
            websockets::who_does_not_read_holds_the_handler_back_and_is_ended,
            websockets::a_handler_that_does_not_read_holds_its_peer_back,
            websockets::halves_work_in_tasks,
            websockets::a_drain_gives_time_for_a_goodbye,
            websockets::a_drain_ends_who_does_not_listen,
            websockets::a_cut_ends_websockets,
            websockets::origins_and_subprotocols_are_looked_at,
            websockets::peers_may_break_off_at_any_moment,
        );
    };
    (@http2 $name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $benches;
            tunnels::a_stream_in_another_protocol_carries_bytes_both_ways,
            tunnels::the_other_protocol_may_begin_and_end_on_a_stream,
            tunnels::a_task_does_not_keep_the_stream_of_a_protocol_that_is_over,
            tunnels::a_resource_without_the_protocol_refuses_it,
            tunnels::other_protocols_can_be_switched_off,
            tunnels::another_protocol_ends_with_its_peer,
            tunnels::a_panic_in_another_protocol_resets_its_stream,
            tunnels::another_protocol_has_an_idle_time_of_its_own,
            tunnels::a_peer_that_does_not_read_another_protocol_is_ended,
            http2::the_preface_may_come_in_pieces,
            http2::prior_knowledge_can_be_switched_off,
            http2::one_stream_too_many_is_refused,
            http2::a_short_rest_of_a_request_is_read,
            http2::content_under_way_is_not_held_against_the_client,
            http2::a_reset_ends_the_handler,
            http2::a_broken_connection_ends_all_handlers,
            http2::a_drain_finishes_streams,
            http2::a_cut_names_all_streams,
            http2::idle_connections_are_closed,
            http2::a_conversation_may_be_silent,
            http2::a_conversation_that_died_ends,
            http2::a_client_that_vanished_is_left,
            http2::a_stall_that_is_over_is_forgotten,
            http2::frames_that_ask_for_nothing_keep_no_connection,
            http2::a_window_that_stays_shut_is_a_reset,
            http2::a_connection_s_window_that_stays_shut_ends_its_streams,
            http2::small_pieces_reach_a_client_that_acknowledges_every_frame,
            http2::uploads_may_come_one_after_the_other,
            http2::a_reset_begins_the_idle_time,
            http2::a_handler_that_reads_late_makes_nobody_late,
            http2::silent_streams_do_not_hold_up_the_end_of_a_life,
            http2::what_is_taken_of_an_upload_that_stalled_opens_the_window,
            http2::trailers_follow_any_content,
            http2::trailers_are_the_end,
            http2::a_host_may_be_named_twice,
            http2::an_exchange_has_its_time_after_its_response_too,
            http2::a_broken_rule_ends_the_connection,
            http2::tls_agrees_on_http2,
        );
    };
    (@http2_heavy $name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $benches;
            http2::large_responses_arrive_whole,
            http2::large_bodies_arrive_whole,
            http2::who_takes_everything_is_heard,
            http2::who_waits_for_others_is_not_late,
            http2::an_upload_is_read_beside_a_fast_download,
            http2::who_reads_nothing_is_cut_off,
        );
    };
    // Where a peer can distinguish a clean end from a reset: not on Unix sockets.
    (@with_resets $name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $benches;
            surprises::a_failed_stream_to_http_1_0_does_not_look_whole,
            surprises::a_cut_stream_to_http_1_0_does_not_look_whole,
            surprises::a_late_stream_to_http_1_0_does_not_look_whole,
            surprises::a_cancelled_stream_to_http_1_0_does_not_look_whole,
            surprises::a_reset_is_noticed_before_the_body_is_asked_for,
            surprises::a_reset_is_noticed_behind_all_that_is_read_ahead,
            upgrades::a_protocol_that_does_not_read_ends_with_its_peer,
        );
    };
    // Expensive cases, for few seeds, and for kernels.
    (@heavy $name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $benches;
            rates::a_slow_reader_behind_large_buffers_gets_all_of_a_response,
            rates::peers_that_do_not_read_leave_nothing_in_the_kernel,
            rates::who_reads_no_small_response_is_cut_off,
            rates::who_pauses_before_the_end_gets_every_answer,
            endings::the_last_answer_arrives_while_its_body_still_comes,
            endings::a_413_arrives_after_megabytes,
            buffers::half_heads_hold_no_buffer_while_they_wait,
            buffers::peers_that_do_not_read_hold_no_buffer_while_they_wait,
            buffers::upgrades_that_do_not_read_hold_no_buffer,
            buffers::a_cut_is_heard_in_an_upload,
            large::large_pieces_to_http_1_0_end_with_the_connection,
            large::shared_content_reaches_a_slow_reader,
            large::who_takes_no_shared_content_is_cut_off,
            large::shared_content_under_way_is_cut_and_named,
            large::large_and_small_responses_keep_their_order,
        );
    };
    (@tests $name:ident, $benches:expr; $($file:ident :: $case:ident,)*) => {
        mod $name {
            #[allow(unused_imports, reason = "a bench may need no names")]
            use super::*;

            $(
                #[test]
                fn $case() {
                    $benches.check(async |bench| $crate::server::cases::$file::$case(bench).await);
                }
            )*
        }
    };
}

/// Generates the module `name` with the cases of one file: `each` of them over all protocols, and
/// those that run `once`.
#[macro_export]
macro_rules! suite {
    (
        $file:ident, $name:ident, $benches:expr, [$($over:ident = $way:ident),*],
        each $each:tt, once [$($once:ident,)*],
    ) => {
        mod $name {
            #[allow(unused_imports, reason = "a bench may need no names")]
            use super::*;

            $($crate::suite!(@over $file, $over, $way, $benches, $each);)*
            $(
                #[test]
                fn $once() {
                    $benches.check(async |bench| $crate::server::$file::$once(bench).await);
                }
            )*
        }
    };
    (@over $file:ident, $over:ident, $way:ident, $benches:expr, [$($case:ident,)*]) => {
        mod $over {
            #[allow(unused_imports, reason = "a bench may need no names")]
            use super::*;
            use $crate::server::client::Way;

            $(
                #[test]
                fn $case() {
                    $benches.check(async |bench| {
                        $crate::server::$file::$case(bench, Way::$way).await;
                    });
                }
            )*
        }
    };
}

/// Tests the server on the simulated network, including the cases that need virtual time or special
/// buffers: `server_simulated!(name, seeds, heavy_seeds)` generates the module `name`.
#[macro_export]
macro_rules! server_simulated {
    ($name:ident, $seeds:expr, $heavy_seeds:expr) => {
        mod $name {
            use super::*;

            $crate::server!(all, $crate::server::SimulatedBenches::seeds($seeds));
            $crate::server!(@with_resets resets, $crate::server::SimulatedBenches::seeds($seeds));
            $crate::server!(@heavy heavy, $crate::server::SimulatedBenches::seeds($heavy_seeds));
            $crate::server!(@http2 http2, $crate::server::SimulatedBenches::seeds($seeds));
            $crate::server!(
                @http2_heavy http2_heavy, $crate::server::SimulatedBenches::seeds($heavy_seeds)
            );
            $crate::server!(
                @tests hours, $crate::server::SimulatedBenches::seeds($heavy_seeds);
                quiet::timeouts_are_kept_after_any_quiet,
                quiet::an_idle_connection_is_closed_after_a_long_quiet,
                quiet::timeouts_are_kept_after_a_worker_stood_still,
                rates::a_steady_upload_may_take_hours,
                rates::a_slow_reader_with_a_large_window_may_be_silent,
                rates::an_upload_below_the_least_rate_is_a_408,
                rates::a_silent_upload_is_late_whatever_is_left_of_its_window,
                rates::an_upload_in_tls_is_measured_by_its_content,
                rates::a_proxy_header_before_tls_is_no_content,
                rates::who_becomes_silent_is_noticed_in_time,
                rates::a_slow_but_steady_reader_gets_all_of_a_response,
                promised::a_stalled_write_leaves_a_promised_handler_alone,
                buffers::one_handshake_too_many_ends_the_oldest,
                buffers::a_handshake_that_is_not_taken_is_cut_off_in_time,
                drain::a_drain_fails_no_request,
                drain::who_does_not_leave_holds_no_drain_up,
                timeouts::malformed_heads_in_pieces_are_not_waited_for,
                events::a_stream_without_events_lives_for_hours,
                events::a_silent_stream_sends_comments_for_hours,
                events::a_reader_whose_window_opens_late_is_served_for_hours,
                events::who_takes_no_comments_is_ended,
                events::a_reader_of_events_that_vanished_is_left,
                events::a_lame_duck_goes_on_with_events,
                websockets::a_peer_that_answers_may_be_silent_for_hours,
                websockets::a_dead_peer_is_noticed,
                websockets::a_peer_that_nobody_reads_is_not_dead,
                websockets::a_close_frame_is_not_waited_for_without_an_end,
                websockets::a_lame_duck_goes_on_with_websockets,
            );
            $crate::server!(
                @tests virtual_time, $crate::server::SimulatedBenches::seeds($seeds);
                surprises::who_dribbles_after_an_alert_is_left,
            );
        }
    };
}

/// Tests the server on a driver that uses the kernel: `server_on_kernel!(name, choice)` generates
/// the module `name`, with every case over TCP and Unix sockets, and the cases that need a real
/// kernel.
#[macro_export]
macro_rules! server_on_kernel {
    ($name:ident, $choice:expr) => {
        mod $name {
            use super::*;

            $crate::server!(tcp, $crate::server::KernelBenches::tcp($choice));
            #[cfg(unix)]
            $crate::server!(unix, $crate::server::KernelBenches::unix($choice));
            #[cfg(unix)]
            $crate::server!(
                @tests kernel_unix, $crate::server::KernelBenches::unix($choice);
                surprises::who_becomes_idle_in_a_drain_has_a_moment,
                rates::who_pauses_before_the_end_gets_every_answer,
                rates::who_took_its_answers_late_may_be_idle_as_long_as_others,
                rates::nobody_is_judged_by_the_peer_before,
            );
            $crate::server!(@with_resets resets, $crate::server::KernelBenches::tcp($choice));
            $crate::server!(@heavy heavy, $crate::server::KernelBenches::tcp($choice));
            $crate::server!(@http2 http2, $crate::server::KernelBenches::tcp($choice));
            $crate::server!(@http2_heavy http2_heavy, $crate::server::KernelBenches::tcp($choice));
            $crate::server!(
                @tests kernel, $crate::server::KernelBenches::tcp($choice);
                surprises::who_becomes_idle_in_a_drain_has_a_moment,
                kernel::handlers_may_use_tokio_sockets,
                kernel::handlers_may_use_blocking_threads,
                kernel::a_handler_that_blocks_its_thread_is_noticed,
                kernel::no_peer_is_late_because_its_worker_stood_still,
                kernel::the_silent_are_closed_beside_handlers_that_block,
                kernel::blocking_functions_that_outlive_their_request_are_waited_for,
                kernel::idle_blocking_threads_do_not_hold_the_end_up,
                kernel::a_blocking_function_without_an_end_does_not_hold_the_end_up,
                kernel::a_second_order_leaves_blocking_functions_behind,
                kernel::offloaded_work_lets_others_be_served,
                kernel::a_panic_in_offloaded_work_is_a_500,
                kernel::offloaded_work_ends_by_itself_when_its_peer_leaves,
            );
        }
    };
}
