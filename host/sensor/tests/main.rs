//! Whole boxes: publishers and readers in threads, hostile publishers, and the C header.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod c_header;
mod c_reader;
mod hostile;
mod implicit;
mod planted;
mod racing;
