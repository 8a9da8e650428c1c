//! The server's guarantees, tested on every driver.
//!
//! [`server!`](macro@crate::server) generates a module with one test per guarantee for the driver
//! that a bench provides: [`SimulatedBenches`] for the in-memory network, where each test repeats
//! under many seeds with virtual time, [`KernelBenches`] for the machine's sockets. A case is
//! written once: it is asynchronous, and on a kernel its clients block.
//!
//! Start with `bench.rs`, then any file of `cases/`.

pub mod access_log_events;
mod any_bench;
pub mod app;
mod attacks;
pub mod authority;
pub mod bench;
pub mod callers;
pub mod cases;
pub mod client;
pub mod events;
mod failing;
pub mod held;
pub mod hours;
mod kernel;
mod late_bodies;
pub mod logged;
mod mounted;
mod overload;
pub mod peer;
pub mod random;
pub mod reply;
pub mod secure;
pub mod server_timeouts;
pub mod shared;
mod simulated;
pub mod streams;
pub mod traced;
mod ways;
pub mod websockets;

pub use any_bench::{AnyBench, AnyServer, AnyWire};
pub use kernel::{KernelBench, KernelBenches, SocketWire};
pub use mounted::MountedBenches;
pub use simulated::{SimulatedBench, SimulatedBenches, SimulatedOnly, SimulatedWire};

/// Tests the server on a driver: `server!(name, benches)` generates the module `name`.
#[macro_export]
macro_rules! server {
    ($name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $benches;
            early_closes::a_response_arrives_although_the_request_body_was_cut_short,
            early_closes::delivered_requests_are_not_reported_as_aborted,
            early_closes::a_half_close_is_noticed_before_the_body_is_read,
            early_closes::an_unread_body_does_not_delay_a_drain,
            early_closes::close_notify_within_a_body_is_answered,
            requests::pipelined_requests_are_answered_in_order_and_at_once,
            requests::replies_do_not_wait_for_a_later_handler,
            requests::a_half_closed_pipeline_is_answered_to_its_end,
            requests::ready_handlers_answer_a_half_closed_pipeline,
            requests::pipelining_beyond_the_output_limit_loses_nothing,
            requests::http_1_0_persists_only_if_asked,
            requests::a_stream_to_http_1_0_ends_with_the_connection,
            requests::no_request_is_answered_after_connection_close,
            requests::every_form_of_request_target_is_accepted,
            requests::a_malformed_request_gets_an_error_and_closes_the_connection,
            requests::a_head_may_arrive_in_any_pieces,
            requests::a_truncated_head_is_answered,
            requests::connections_do_not_mix,
            bodies::a_body_of_known_length_is_echoed,
            bodies::a_chunked_body_is_echoed,
            bodies::a_large_body_flows_through,
            bodies::a_slow_handler_receives_a_complete_large_body,
            bodies::a_request_behind_a_large_body_is_answered,
            bodies::a_truncated_large_body_is_noticed,
            bodies::small_requests_are_answered_during_large_uploads,
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
            responses::nothing_follows_trailers,
            responses::a_large_response_arrives_complete,
            responses::an_endless_stream_waits_for_its_reader,
            responses::a_slow_reader_is_served,
            responses::a_stream_ends_when_its_reader_disconnects,
            responses::a_half_closed_reader_gets_the_complete_stream,
            responses::a_quiet_stream_is_cancelled_when_its_client_closes,
            responses::a_half_closed_reader_gets_a_body_of_known_length,
            handlers::a_half_closed_peer_has_not_disconnected,
            handlers::a_half_closed_http_1_0_peer_gets_its_response,
            handlers::a_pending_handler_is_cancelled_when_its_client_closes,
            handlers::a_run_to_completion_handler_is_not_cancelled,
            handlers::many_handlers_wait_concurrently,
            handlers::handlers_may_use_tokio,
            timeouts::a_silent_connection_is_closed,
            timeouts::a_slow_head_is_a_408,
            timeouts::a_slow_body_is_a_408,
            timeouts::a_bidirectional_stream_may_be_silent,
            timeouts::a_dead_bidirectional_stream_is_ended,
            timeouts::a_body_does_not_time_out_while_it_is_not_read,
            timeouts::an_unread_body_must_arrive_soon,
            timeouts::an_idle_connection_is_closed,
            timeouts::an_old_connection_is_closed,
            timeouts::a_slow_handshake_times_out,
            timeouts::the_timeout_of_a_route_applies,
            timeouts::a_stalled_reader_is_disconnected_in_time,
            limits::connections_beyond_the_limit_wait,
            limits::listeners_share_the_connection_limit,
            limits::a_long_target_is_a_414,
            limits::a_large_head_is_a_431,
            limits::accepting_continues_after_errors,
            shutdown::idle_connections_are_closed,
            shutdown::requests_in_progress_are_finished,
            shutdown::no_connection_is_accepted_after_the_shutdown_request,
            shutdown::requests_in_progress_at_the_deadline_are_aborted_and_reported,
            shutdown::an_abort_ends_everything,
            shutdown::endless_tasks_are_aborted_at_the_deadline_and_counted,
            shutdown::tasks_may_get_less_time_than_connections,
            shutdown::a_second_shutdown_request_aborts_tasks_at_once,
            shutdown::tasks_owned_by_the_application_end_with_it,
            shutdown::tasks_and_streams_may_await_the_shutdown_request,
            shutdown::a_shutdown_phase_may_be_unlimited,
            upgrades::an_upgraded_connection_carries_bytes_both_ways,
            upgrades::the_upgraded_protocol_may_send_first_and_close_first,
            upgrades::an_unrequested_upgrade_is_a_500,
            upgrades::an_upgraded_connection_ends_with_its_peer,
            secure::requests_work_inside_tls,
            secure::sessions_are_resumed,
            secure::pipelining_works_inside_tls,
            secure::close_notify_is_answered,
            secure::close_notify_cancels_pending_handlers,
            secure::a_truncated_record_is_not_an_end,
            secure::plain_http_on_the_tls_port_gets_an_explanation,
            secure::garbage_instead_of_tls_affects_no_other_connection,
            secure::a_handshake_may_be_abandoned,
            secure::handlers_see_the_client_certificate,
            secure::rejected_certificates_are_counted_by_reason,
            secure::a_new_certificate_does_not_affect_connections_and_handshakes_in_progress,
            run_to_completion::a_run_to_completion_handler_gets_an_error_for_a_truncated_body,
            run_to_completion::a_tls_error_does_not_cancel_a_run_to_completion_handler,
            run_to_completion::a_silent_upgraded_connection_is_closed,
            run_to_completion::an_upgraded_protocol_may_await_the_shutdown_request,
            run_to_completion::a_handler_that_ignores_the_shutdown_request_is_aborted_in_time,
            run_to_completion::an_upgrade_inside_tls_ends_with_its_peer,
            endings::a_response_to_an_unread_body_announces_the_close,
            endings::no_connection_closes_unannounced,
            endings::the_last_response_arrives_although_more_requests_follow,
            endings::a_response_waits_for_a_peer_that_sends_slowly,
            endings::a_peer_that_stops_sending_is_disconnected,
            buffers::a_stream_of_empty_pieces_does_not_starve_others,
            drain::requests_in_flight_when_a_drain_starts_are_answered,
            drain::a_full_server_answers_all_waiting_clients,
            drain::an_abort_ends_a_full_server,
            drain::the_server_accepts_and_answers_in_the_lame_duck_phase,
            late_bodies::a_late_body_that_is_dropped_is_discarded,
            late_bodies::a_late_reader_gets_an_error_when_its_peer_disconnects,
            late_bodies::a_slow_body_times_out_after_the_response_too,
            late_bodies::a_late_body_that_is_not_read_times_out,
            late_bodies::a_drain_waits_for_a_body_that_is_read_after_its_response,
            late_bodies::a_reset_is_noticed_while_a_body_buffer_is_full,
            events::pieces_arrive_one_by_one_on_every_protocol,
            events::events_arrive_one_by_one_on_every_protocol,
            events::pushed_events_arrive_on_every_protocol,
            events::a_drain_ends_event_streams,
            events::the_handler_sends_a_final_event_in_a_drain,
            events::a_detached_event_stream_continues_during_a_drain,
            events::a_sender_is_notified_of_a_drain,
            events::a_sender_is_notified_when_its_reader_disconnects,
            events::a_close_is_noticed_on_a_quiet_event_stream,
            events::a_reader_that_does_not_read_events_blocks_the_producer,
            websockets::messages_of_all_sizes_are_echoed,
            websockets::fragments_are_one_message,
            websockets::pings_are_answered_while_the_handler_waits,
            websockets::a_handler_may_ping,
            websockets::a_handler_closes_with_a_code,
            websockets::protocol_errors_are_reported,
            websockets::an_end_without_a_close_frame_ends_the_handler,
            websockets::messages_are_compressed,
            websockets::a_decompression_bomb_closes_with_1009,
            websockets::a_panic_of_the_handler_closes_with_1011,
            websockets::a_peer_that_does_not_read_blocks_the_handler_and_is_disconnected,
            websockets::a_handler_that_does_not_read_blocks_its_peer,
            websockets::halves_work_in_tasks,
            websockets::a_drain_gives_handlers_time_to_close,
            websockets::a_drain_ends_handlers_that_ignore_it,
            websockets::an_abort_ends_websockets,
            websockets::origins_and_subprotocols_are_checked,
            websockets::peers_may_disconnect_at_any_time,
        );
    };
    (@http2 $name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $benches;
            tunnels::a_tunnel_carries_bytes_both_ways,
            tunnels::a_tunnel_may_send_first_and_close_first,
            tunnels::a_task_does_not_keep_the_stream_of_an_ended_tunnel,
            tunnels::a_route_without_the_protocol_refuses_it,
            tunnels::tunnels_can_be_disabled,
            tunnels::a_tunnel_ends_with_its_peer,
            tunnels::a_panic_in_a_tunnel_resets_its_stream,
            tunnels::a_tunnel_has_its_own_idle_timeout,
            tunnels::a_tunnel_whose_peer_does_not_read_is_ended,
            http2::the_preface_may_arrive_in_pieces,
            http2::prior_knowledge_can_be_disabled,
            http2::streams_beyond_the_limit_are_refused,
            http2::a_short_request_remainder_is_read,
            http2::data_in_flight_is_not_a_protocol_error,
            http2::a_reset_ends_the_handler,
            http2::a_broken_connection_ends_all_handlers,
            http2::a_drain_finishes_streams,
            http2::an_abort_reports_all_streams,
            http2::idle_connections_are_closed,
            http2::a_bidirectional_stream_may_be_silent,
            http2::a_dead_bidirectional_stream_is_ended,
            http2::a_vanished_client_is_disconnected,
            http2::a_past_stall_does_not_count,
            http2::useless_frames_do_not_keep_a_connection_open,
            http2::a_window_that_stays_closed_causes_a_reset,
            http2::a_connection_window_that_stays_closed_ends_its_streams,
            http2::small_pieces_reach_a_client_that_acknowledges_every_frame,
            http2::uploads_may_follow_each_other,
            http2::a_reset_starts_the_idle_timeout,
            http2::a_handler_that_reads_late_does_not_delay_others,
            http2::silent_streams_do_not_delay_the_maximum_connection_age,
            http2::reading_a_stalled_upload_opens_the_window,
            http2::trailers_follow_any_content,
            http2::nothing_follows_trailers,
            http2::the_host_may_be_sent_twice,
            http2::an_exchange_has_a_timeout_after_its_response_too,
            http2::a_protocol_error_ends_the_connection,
            http2::tls_negotiates_http2,
        );
    };
    (@http2_heavy $name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $benches;
            http2::large_responses_arrive_complete,
            http2::large_bodies_arrive_complete,
            http2::a_client_that_reads_everything_is_served,
            http2::a_stream_that_waits_for_others_does_not_time_out,
            http2::an_upload_is_read_during_a_fast_download,
            http2::a_client_that_does_not_read_is_disconnected,
        );
    };
    // Where a peer can distinguish a clean end from a reset: not on Unix sockets.
    (@with_resets $name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $benches;
            early_closes::a_failed_stream_to_http_1_0_does_not_look_complete,
            early_closes::an_aborted_stream_to_http_1_0_does_not_look_complete,
            early_closes::a_timed_out_stream_to_http_1_0_does_not_look_complete,
            early_closes::a_cancelled_stream_to_http_1_0_does_not_look_complete,
            early_closes::a_reset_is_noticed_before_the_body_is_read,
            early_closes::a_reset_is_noticed_behind_buffered_data,
            upgrades::a_protocol_that_does_not_read_ends_with_its_peer,
        );
    };
    // Expensive cases, for few seeds, and for kernels.
    (@heavy $name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $benches;
            rates::a_slow_reader_behind_large_buffers_gets_the_complete_response,
            rates::disconnected_peers_leave_no_unsent_data_in_the_kernel,
            rates::a_peer_that_does_not_read_small_responses_is_disconnected,
            rates::a_peer_that_pauses_before_the_end_gets_every_response,
            endings::the_last_response_arrives_while_the_request_body_is_still_arriving,
            endings::a_413_arrives_after_megabytes,
            buffers::partial_heads_hold_no_buffer_while_they_wait,
            buffers::peers_that_do_not_read_hold_no_buffer_while_they_wait,
            buffers::upgrades_that_do_not_read_hold_no_buffer,
            buffers::an_abort_is_noticed_during_an_upload,
            large::large_pieces_to_http_1_0_end_with_the_connection,
            large::shared_content_reaches_a_slow_reader,
            large::a_client_that_does_not_read_shared_content_is_disconnected,
            large::shared_content_in_progress_is_aborted_and_reported,
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
                @tests hours,
                $crate::server::SimulatedOnly($crate::server::SimulatedBenches::seeds($heavy_seeds));
                long_idle::timeouts_work_after_any_pause,
                long_idle::an_idle_connection_is_closed_after_a_long_pause,
                long_idle::timeouts_work_after_a_worker_was_blocked,
                rates::a_steady_upload_may_take_hours,
                rates::a_slow_reader_with_a_large_window_may_be_silent,
                rates::an_upload_below_the_minimum_rate_is_a_408,
                rates::a_silent_upload_times_out_with_any_window,
                rates::an_upload_in_tls_is_measured_by_its_content,
                rates::a_proxy_header_before_tls_is_not_content,
                rates::a_peer_that_becomes_silent_is_noticed_in_time,
                rates::a_slow_but_steady_reader_gets_the_complete_response,
                run_to_completion::a_stalled_write_does_not_cancel_a_run_to_completion_handler,
                buffers::a_handshake_beyond_the_limit_ends_the_oldest,
                buffers::a_handshake_that_is_not_read_times_out,
                drain::a_drain_fails_no_request,
                drain::clients_that_do_not_disconnect_do_not_delay_a_drain,
                timeouts::malformed_heads_in_pieces_are_refused_early,
                events::an_event_stream_without_events_stays_open_for_hours,
                events::a_silent_event_stream_sends_comments_for_hours,
                events::an_event_reader_with_late_window_updates_is_served_for_hours,
                events::a_reader_that_does_not_read_comments_is_disconnected,
                events::a_vanished_event_reader_is_disconnected,
                events::event_streams_continue_in_the_lame_duck_phase,
                websockets::a_peer_that_answers_may_be_silent_for_hours,
                websockets::a_dead_peer_is_noticed,
                websockets::a_peer_whose_messages_are_not_read_is_not_dead,
                websockets::the_wait_for_a_close_frame_is_limited,
                websockets::websockets_continue_in_the_lame_duck_phase,
                http2::a_complete_body_that_is_dropped_after_the_response_ends_its_stream,
            );
            $crate::server!(
                @tests virtual_time, $crate::server::SimulatedBenches::seeds($seeds);
                early_closes::a_peer_that_keeps_sending_after_an_alert_is_disconnected,
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
                early_closes::connections_that_become_idle_in_a_drain_get_a_grace_period,
                rates::a_peer_that_pauses_before_the_end_gets_every_response,
                rates::a_peer_that_read_late_has_the_full_idle_timeout,
                rates::measurements_of_the_previous_peer_do_not_count,
            );
            $crate::server!(@with_resets resets, $crate::server::KernelBenches::tcp($choice));
            $crate::server!(@heavy heavy, $crate::server::KernelBenches::tcp($choice));
            $crate::server!(@http2 http2, $crate::server::KernelBenches::tcp($choice));
            $crate::server!(@http2_heavy http2_heavy, $crate::server::KernelBenches::tcp($choice));
            $crate::server!(
                @tests kernel, $crate::server::KernelBenches::tcp($choice);
                early_closes::connections_that_become_idle_in_a_drain_get_a_grace_period,
                kernel::handlers_may_use_tokio_sockets,
                kernel::handlers_may_use_blocking_threads,
                kernel::a_handler_that_blocks_its_thread_is_noticed,
                kernel::no_peer_times_out_because_its_worker_was_blocked,
                kernel::silent_connections_are_closed_while_handlers_block,
                kernel::the_server_waits_for_blocking_functions_that_outlive_their_request,
                kernel::idle_blocking_threads_do_not_delay_the_end,
                kernel::an_endless_blocking_function_does_not_delay_the_end,
                kernel::a_second_shutdown_request_abandons_blocking_functions,
                kernel::offloaded_work_does_not_block_other_requests,
                kernel::a_panic_in_offloaded_work_is_a_500,
                kernel::offloaded_work_completes_after_its_peer_disconnects,
            );
        }
    };
}
