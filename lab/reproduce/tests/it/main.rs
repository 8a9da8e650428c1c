//! Published pages as programs, and what is concluded about their claims.

mod findings;
mod pages;
