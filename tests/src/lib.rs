//! Suites that run on every driver.
//!
//! [`contract!`] generates a module with one test per rule of `peregrine-driver` for the driver
//! that a [`Harness`] provides: [`Kernel`] for drivers that use the machine's sockets,
//! [`Simulated`] for the in-memory network, where each test repeats under many seeds. A new driver
//! is one line in `tests/suite/driver_contract.rs`; a new rule is one function in `cases/` plus its
//! name in the list below.
//!
//! Start with `harness.rs`, then any file of `cases/`.
#![forbid(unsafe_code)]

pub mod cases;
pub mod client;
mod harness;
mod isolated;
mod kernel;
mod poll;
pub mod server;
mod simulated;

pub use harness::{Harness, Peer};
pub use isolated::{isolated, isolated_case};
pub use kernel::{Kernel, ThreadPeer};
pub use poll::{both, first_of, polled_once};
pub use simulated::{Simulated, multiplied};

/// Tests a driver against the contract: `contract!(name, harness)` generates the module `name`.
#[macro_export]
macro_rules! contract {
    ($name:ident, $harness:expr) => {
        $crate::contract!(
            @tests $name, $harness;
            receiving::bytes_are_echoed_unchanged,
            receiving::many_connections_do_not_mix,
            receiving::the_end_is_reported_repeatedly_as_an_empty_chunk,
            receiving::a_dropped_receive_loses_nothing,
            receiving::a_waiting_receiver_blocks_its_peer,
            receiving::a_receiver_that_pauses_during_a_flood_blocks_its_peer,
            receiving::a_flood_with_pauses_arrives_complete,
            receiving::a_flood_that_ends_is_received_to_its_last_byte,
            receiving::a_broken_connection_does_not_look_like_a_clean_close,
            receiving::a_reset_is_known_without_receiving,
            receiving::a_chunk_outlives_its_stream,
            receiving::both_directions_work_concurrently,
            sending::a_sent_vector_is_left_empty,
            sending::a_dropped_send_continues_in_the_background,
            sending::a_send_after_a_dropped_send_keeps_the_order,
            sending::finishing_waits_for_a_dropped_send,
            sending::a_slow_reader_blocks_the_sender,
            sending::sends_without_buffer_space_are_not_reported_as_sent,
            sending::a_send_to_a_closed_peer_eventually_fails,
            sending::a_failed_send_wakes_the_receiver,
            sending::each_direction_remembers_only_the_last_waker,
            sending::a_dropped_stream_closes_the_connection,
            sending::bytes_after_the_end_do_not_affect_earlier_bytes,
            sending::a_send_fails_after_the_end_was_sent,
            shared::owned_and_shared_bytes_keep_their_order,
            shared::shared_bytes_may_be_sent_repeatedly,
            shared::progress_counts_shared_bytes,
            shared::shared_bytes_are_released,
            shared::destructors_of_shared_bytes_may_panic,
            shared::a_worker_that_ends_releases_shared_bytes,
            files::bytes_and_files_keep_their_order,
            files::a_file_that_is_too_short_ends_sending,
            files::files_are_closed,
            files::a_worker_that_ends_closes_files,
            accepting::a_dropped_accept_loses_no_connection,
            accepting::a_dropped_listener_closes_queued_connections,
            accepting::accepting_continues_after_a_peer_disconnected,
            accepting::a_stream_outlives_its_listener,
            accepting::both_ends_have_an_address,
            passing::a_passed_connection_continues_unchanged,
            passing::a_passed_connection_that_is_not_adopted_is_closed,
            running::timers_fire_in_order_and_never_early,
            running::a_dropped_timer_is_harmless,
            running::iteration_ends_are_reported_consistently,
            running::a_panic_ends_one_task_only,
            running::tasks_are_dropped_when_main_ends,
            running::the_worker_ends_with_everything_in_flight,
            running::a_tokio_runtime_is_entered,
            running::tokio_tasks_are_counted,
            running::wakers_work_from_other_tasks,
            running::the_clocks_move_forward,
        );
    };
    (@tests $name:ident, $harness:expr; $($file:ident :: $case:ident,)*) => {
        mod $name {
            #[allow(unused_imports, reason = "a harness may need no names")]
            use super::*;

            $(
                #[test]
                fn $case() {
                    $crate::cases::$file::$case(&$harness);
                }
            )*
        }
    };
}

/// Tests a driver that uses the machine's sockets: `contract_kernel!(name, Driver)` generates the
/// module `name`, with the contract over TCP and Unix sockets, and the rules that need a real
/// kernel.
#[macro_export]
macro_rules! contract_kernel {
    ($name:ident, $driver:ty) => {
        mod $name {
            use super::*;

            $crate::contract!(tcp, $crate::Kernel::<$driver>::tcp());
            #[cfg(unix)]
            $crate::contract!(unix, $crate::Kernel::<$driver>::unix());
            $crate::contract!(
                @tests kernel, $crate::Kernel::<$driver>::tcp();
                kernel::a_handler_may_use_tokio_sockets,
                kernel::a_waker_works_from_another_thread,
                kernel::busy_tasks_do_not_starve_others,
                kernel::an_idle_worker_needs_no_hold,
                kernel::connections_wait_in_the_backlog_until_they_are_accepted,
                kernel::the_worker_waits_for_blocking_functions,
                kernel::queued_blocking_functions_start,
                kernel::endless_blocking_functions_do_not_delay_a_worker,
                kernel::no_connection_is_accepted_after_refuse_new_connections,
                kernel::a_reset_reaches_the_peer,
                kernel::skipped_data_is_received_in_order,
                kernel::a_worker_with_long_iterations_accepts_many,
                kernel::progress_follows_a_slow_reader,
                kernel::a_peer_that_does_not_read_uses_little_memory,
                kernel::a_shared_listener_keeps_its_options,
                kernel::connections_have_the_socket_options,
                receiving::small_messages_arrive_during_floods,
                passing::another_worker_adopts_a_connection,
                sharing::workers_that_share_a_listener_accept_many_connections,
                sharing::a_blocked_worker_withholds_no_connection_from_the_others,
                sharing::a_worker_that_stopped_accepting_withholds_no_connection_from_the_others,
            );
            #[cfg(unix)]
            $crate::contract!(
                @tests kernel_unix, $crate::Kernel::<$driver>::unix();
                kernel::a_peer_that_stops_reading_breaks_the_connection,
                kernel::connections_have_the_socket_options,
                kernel::only_queued_unix_connections_are_accepted_after_refuse_new_connections,
                passing::another_worker_adopts_a_connection,
                sharing::workers_that_share_a_listener_accept_many_connections,
                sharing::a_blocked_worker_withholds_no_connection_from_the_others,
                sharing::a_worker_that_stopped_accepting_withholds_no_connection_from_the_others,
            );
        }
    };
}
