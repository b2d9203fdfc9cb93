//! Tests of the apps through their public face.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod random;
mod unison;
