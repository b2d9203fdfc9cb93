//! Integration tests: unmodified programs, intercepted.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test that cannot go on has failed

mod suite;
