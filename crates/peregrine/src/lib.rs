//! An HTTP server framework: io_uring or epoll, one worker per core.
