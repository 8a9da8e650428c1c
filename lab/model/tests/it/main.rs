//! Run files from outside.

mod form;
