//! The paper audit: published benchmark numbers against arithmetic, without sending a request.
//!
//! A page of numbers can be checked where it stands. Requests in flight cannot exceed connections,
//! percentiles cannot fall, a headline must follow from its table, and a rate without errors,
//! versions or repeats tells little. The audit turns a page, transcribed into a claim file, into
//! findings whose arithmetic a reader can repeat with a pencil.
//!
//! It is not a measurement and proves no number right: it finds those that cannot be, and what a
//! reader would need to know. Printed numbers stand for all values that round to them, so that
//! nothing is called impossible for want of digits.
//!
//! Where to start: [`claim`] is the page as data, [`checks`] has one function per question, and
//! [`report`] is the result. [`command`] is the program `audit` without its process, and
//! `lab/claims/README.md` explains how a claim file is written.

#![forbid(unsafe_code)]

pub mod checks;
pub mod claim;
pub mod command;
pub mod figures;
pub mod finding;
pub mod hand;
pub mod quantity;
pub mod read;
pub mod render;
pub mod report;
pub mod statement;
