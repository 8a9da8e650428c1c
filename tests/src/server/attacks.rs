//! The list of attacks.

/// Attacks a server on a driver: `attacks!(name, benches)` generates the module `name`.
#[macro_export]
macro_rules! attacks {
    ($name:ident, $benches:expr) => {
        $crate::server!(
            @tests $name, $benches;
            attacks::a_rapid_reset,
            attacks::a_reset_for_each_cheap_request,
            attacks::a_made_you_reset,
            attacks::a_continuation_flood,
            attacks::a_compression_bomb,
            attacks::a_table_thrash,
            attacks::a_settings_flood,
            attacks::a_ping_flood,
            attacks::a_priority_flood,
            attacks::a_dependency_loop,
            attacks::a_window_update_flood,
            attacks::an_empty_data_flood,
            attacks::a_flood_of_late_data,
            attacks::an_empty_headers_flood,
            attacks::a_padding_flood,
            attacks::a_flood_of_other_frames,
            attacks::huge_header_lists,
            attacks::a_window_of_one_byte,
            attacks::a_zero_window,
            attacks::streams_that_are_never_ended,
            attacks::a_slow_preface,
            attacks::slow_frames,
            attacks::output_that_is_never_read,
        );
    };
}
