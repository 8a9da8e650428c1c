//! Files as responses, and the descriptors that they keep open.

#[cfg(target_os = "linux")]
mod descriptors;
#[cfg(target_os = "linux")]
mod own_process;
mod serve;
