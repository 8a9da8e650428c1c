//! The list of overload cases.

/// Overloads a server on a driver: `overload!(name, benches)` generates the module `name`.
#[macro_export]
macro_rules! overload {
    ($name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $benches;
            overload::one_request_too_many_is_a_503,
            overload::those_who_are_refused_are_told_different_times,
            overload::health_is_answered_while_memory_is_short,
            overload::destructors_that_panic_harm_nobody,
            overload::a_refused_body_is_not_asked_for,
            overload::a_route_has_its_own_limit,
            overload::a_client_with_too_many_requests_is_a_429,
            overload::a_header_tells_whose_connection_counts,
            goes_on::orders_of_clients_that_left_count,
            goes_on::pages_that_are_refreshed_beside_count,
        );
    };
    // Where connections of one client have one address.
    (@tcp $name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $benches;
            overload::one_connection_of_a_client_too_many_is_reset,
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
            overload::bodies_stop_at_the_ceiling,
            overload::heads_and_windows_stop_at_the_ceiling,
            overload::unread_responses_stop_at_the_ceiling,
            overload::messages_in_parts_stop_at_the_ceiling,
        );
    };
    (@virtual $name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $benches;
            queue_delay::a_target_keeps_goodput_and_delay,
            queue_delay::without_a_target_everybody_waits,
            queue_delay::health_checks_are_never_refused,
            queue_delay::a_burst_is_answered,
        );
    };
}
