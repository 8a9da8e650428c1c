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
            receiving::bytes_come_back_as_they_were_sent,
            receiving::many_connections_do_not_mix,
            receiving::the_end_is_an_empty_chunk_again_and_again,
            receiving::a_dropped_receive_loses_nothing,
            receiving::a_receiver_that_waits_holds_its_peer_back,
            receiving::a_receiver_that_pauses_in_a_flood_holds_its_peer_back,
            receiving::a_flood_with_pauses_arrives_whole,
            receiving::a_flood_that_ends_is_received_to_its_last_byte,
            receiving::a_broken_connection_does_not_look_like_an_orderly_end,
            receiving::a_reset_is_known_without_receiving,
            receiving::a_chunk_outlives_its_stream,
            receiving::both_directions_move_at_the_same_time,
            sending::a_sent_vector_is_left_empty,
            sending::a_dropped_send_goes_on_in_the_background,
            sending::a_send_after_a_dropped_one_keeps_the_order,
            sending::finishing_waits_for_a_dropped_send,
            sending::a_slow_reader_holds_the_sender_back,
            sending::sends_that_find_no_room_are_not_called_sent,
            sending::a_send_to_a_closed_peer_fails_in_the_end,
            sending::a_failed_send_wakes_who_receives,
            sending::each_direction_remembers_the_last_waker_only,
            sending::a_dropped_stream_closes_the_connection,
            sending::bytes_after_the_end_disturb_nothing_before_it,
            sending::a_send_fails_after_the_end_was_sent,
            shared::owned_and_shared_bytes_keep_their_order,
            shared::shared_bytes_may_be_sent_again_and_again,
            shared::progress_counts_shared_bytes,
            shared::shared_bytes_are_let_go_of,
            shared::destructors_of_shared_bytes_harm_nobody,
            shared::a_worker_that_ends_lets_go_of_shared_bytes,
            files::bytes_and_files_keep_their_order,
            files::a_file_that_is_too_short_ends_sending,
            files::files_are_let_go_of,
            files::a_worker_that_ends_lets_go_of_files,
            accepting::a_dropped_accept_loses_no_connection,
            accepting::a_dropped_listener_closes_what_waits,
            accepting::accepting_goes_on_after_a_peer_gave_up,
            accepting::a_stream_outlives_its_listener,
            accepting::both_ends_have_an_address,
            passing::a_passed_connection_goes_on_as_if_nothing_had_been,
            passing::a_passed_connection_that_nobody_adopts_is_closed,
            running::timers_ring_in_order_and_never_early,
            running::a_dropped_timer_does_no_harm,
            running::ends_of_turns_are_told_or_none_is,
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
                kernel::tasks_that_never_rest_starve_nobody,
                kernel::a_worker_that_only_waits_for_the_driver_needs_no_hold,
                kernel::connections_wait_in_the_backlog_until_they_are_asked_for,
                kernel::blocking_functions_are_outlasted,
                kernel::blocking_functions_that_wait_for_a_thread_begin,
                kernel::blocking_functions_without_an_end_hold_no_worker,
                kernel::nobody_new_gets_in_after_refusing,
                kernel::a_reset_reaches_the_peer,
                kernel::what_was_not_looked_for_is_received_in_order,
                kernel::a_worker_with_long_turns_accepts_many,
                kernel::progress_follows_a_peer_that_reads_little,
                kernel::a_peer_that_does_not_read_costs_little,
                kernel::a_shared_listener_stays_as_it_was,
                kernel::connections_have_the_options_of_sockets,
                receiving::small_messages_get_through_beside_floods,
                passing::another_worker_adopts_a_connection,
                sharing::workers_that_share_a_listener_take_a_crowd,
                sharing::a_blocked_worker_keeps_no_connection_from_the_others,
                sharing::who_stopped_asking_keeps_no_connection_from_the_others,
            );
            #[cfg(unix)]
            $crate::contract!(
                @tests kernel_unix, $crate::Kernel::<$driver>::unix();
                kernel::a_peer_that_reads_no_more_breaks_the_connection,
                kernel::connections_have_the_options_of_sockets,
                kernel::who_waits_at_a_unix_socket_is_accepted_after_refusing_and_nobody_else,
                passing::another_worker_adopts_a_connection,
                sharing::workers_that_share_a_listener_take_a_crowd,
                sharing::a_blocked_worker_keeps_no_connection_from_the_others,
                sharing::who_stopped_asking_keeps_no_connection_from_the_others,
            );
        }
    };
}
