//! The list of overload cases.

/// Overloads a server on a driver: `overload!(name, benches)` generates the module `name`.
#[macro_export]
macro_rules! overload {
    ($name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $benches;
            overload::requests_beyond_the_limit_get_a_503,
            overload::refused_requests_get_different_retry_after_times,
            overload::health_is_answered_while_memory_is_short,
            overload::panics_in_destructors_are_contained,
            overload::a_refused_request_gets_no_100_continue,
            overload::a_route_has_its_own_limit,
            overload::too_many_requests_of_a_client_get_a_429,
            overload::forwarded_client_addresses_count_for_the_limit,
            background::writes_of_disconnected_clients_count,
            background::pages_that_are_refreshed_in_the_background_count,
        );
    };
    // Where connections of one client have one address.
    (@tcp $name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $benches;
            overload::connections_of_a_client_beyond_the_limit_are_reset,
        );
    };
    // Where time is real.
    (@kernel $name:ident, $benches:expr) => {
        $crate::server!(@tests $name, $benches; overload::a_standing_queue_is_noticed,);
    };
    // Where the allocator counts what a server holds, one server at a time.
    (@memory $name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $benches;
            overload::bodies_stop_at_the_memory_limit,
            overload::heads_and_windows_stop_at_the_memory_limit,
            overload::unread_responses_stop_at_the_memory_limit,
            overload::fragmented_messages_stop_at_the_memory_limit,
        );
    };
    (@virtual $name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $benches;
            queue_delay::a_target_keeps_goodput_and_delay,
            queue_delay::without_a_target_all_requests_wait,
            queue_delay::health_checks_are_never_refused,
            queue_delay::a_burst_is_answered,
        );
    };
}
