//! What is found on machines that are not this one: folders that look like them.

mod cpu_sets;
mod doctor;
mod guard;
mod machine;
