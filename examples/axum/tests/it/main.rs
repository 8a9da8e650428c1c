//! Every application responds the same under `axum::serve` as under Peregrine, on both drivers.
//!
//! A case is written once, against a [`harness::Host`] that hides which server it starts. Where the
//! servers are meant to differ, the case has an expectation for each.

mod chat;
mod compression;
mod content_type;
mod cors;
mod customize_path_rejection;
mod dependency_injection;
mod error_handling;
mod form;
mod global_404;
mod graceful_shutdown;
mod handle_head_request;
mod harness;
mod hello_world;
mod key_value_store;
mod log;
mod metrics;
mod multipart;
mod multipart_form;
mod print_request_response;
#[cfg(unix)]
mod program;
mod request_id;
mod reverse_proxy;
mod same_answers;
mod secure;
mod sessions;
mod sse;
mod static_file_server;
mod stream_to_file;
mod testing;
mod tls;
mod todos;
mod tracing_aka_logging;
#[cfg(unix)]
mod unix_domain_socket;
mod websockets;

under_every_server! {
    chat {
        everybody_hears_everybody_in_the_same_order
    }
    compression {
        a_handler_sees_a_body_unpacked
        an_answer_is_packed_for_who_wants_it
        fields_are_set_around_every_answer
    }
    content_type {
        a_body_is_read_as_what_it_says_it_is
    }
    cors {
        one_other_origin_is_let_in
        what_a_browser_asks_before_is_answered
    }
    customize_path_rejection {
        parameters_are_decoded
        what_cannot_be_read_is_named
    }
    dependency_injection {
        both_ways_lead_to_one_store
    }
    error_handling {
        an_error_is_told_to_the_client_and_more_of_it_to_the_log
        what_an_extractor_refuses_is_an_error_like_others
    }
    form {
        a_form_is_read
        what_is_no_form_is_refused
    }
    global_404 {
        every_path_that_is_not_there_has_one_answer
        every_method_that_is_not_there_has_one_answer
    }
    graceful_shutdown {
        requests_that_have_begun_are_answered_before_the_end
        a_body_that_has_begun_is_sent_to_its_end
        idle_connections_are_closed_at_once
        a_server_waits_for_what_is_slow_and_for_nothing_else
        what_would_never_end_runs_into_its_limit
    }
    handle_head_request {
        head_says_what_get_would
        a_handler_may_tell_them_apart
    }
    hello_world {
        a_page_is_served
        requests_that_are_sent_at_once_are_answered_in_order
    }
    key_value_store {
        values_are_kept_and_compressed_on_request
        a_value_that_is_too_large_is_refused_with_and_without_a_length
        the_routes_of_the_operator_ask_for_a_token
        calls_too_many_are_shed_and_the_others_are_answered
        a_call_that_takes_too_long_is_ended
    }
    metrics {
        a_second_server_reports_what_the_first_counted
    }
    multipart_form {
        files_in_a_form_are_counted
        forms_that_cannot_be_read_are_refused
    }
    print_request_response {
        bodies_are_shown_and_passed_on
        a_body_that_is_too_large_to_show_is_refused
        a_client_that_asks_before_it_sends_is_told_to
    }
    request_id {
        a_request_keeps_its_number_or_is_given_one
        no_number_is_given_twice
    }
    reverse_proxy {
        requests_and_answers_pass_through
        what_is_about_one_connection_goes_no_further
        bodies_stream_through_it_both_ways
        many_requests_share_its_client
        a_server_that_is_not_there_is_a_bad_gateway
    }
    sessions {
        a_session_lasts_from_login_to_logout
    }
    sse {
        events_come_in_order_and_end
        each_event_comes_when_it_is_made
        a_stream_without_events_shows_that_it_lives
    }
    static_file_server {
        files_are_served_in_every_way
        what_is_not_there_is_answered_by_its_fallback
        a_part_of_a_file_may_be_asked_for
        a_file_that_did_not_change_is_not_sent_again
    }
    stream_to_file {
        a_body_becomes_a_file
        the_files_of_a_form_become_files
        a_name_that_leads_elsewhere_is_refused
        two_uploads_of_one_name_do_not_mix
        a_body_that_breaks_off_leaves_no_file
    }
    testing {
        a_server_answers_as_the_router_does_without_one
        peers_are_distinguished
        who_is_not_told_of_peers_says_so
    }
    tls {
        requests_and_answers_are_encrypted
        the_server_ends_in_order
        plain_requests_are_sent_to_the_secure_port
    }
    todos {
        a_todo_lives_from_post_to_delete
        a_page_of_todos_is_a_part_of_them
        bodies_and_queries_that_cannot_be_read_are_refused
        what_takes_too_long_is_answered_by_the_handler_of_errors
    }
    tracing_aka_logging {
        a_request_s_events_are_in_its_span_in_order
        a_failure_is_reported_as_one
    }
    websockets {
        both_sides_talk_at_once_until_the_server_closes
        a_peer_may_close_first
        a_peer_may_vanish
        many_sockets_do_not_disturb_each_other
        a_request_for_no_socket_is_refused
    }
    unix_domain_socket {
        a_handler_sees_the_name_of_its_peer_s_socket
    }
}
