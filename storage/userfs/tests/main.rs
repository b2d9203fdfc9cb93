//! Integration tests: everything through real mounts.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test that cannot go on has failed

mod suite;
