//! Files as responses, and what the process holds open for them.

#[cfg(target_os = "linux")]
mod descriptors;
#[cfg(target_os = "linux")]
mod own_process;
mod serve;
