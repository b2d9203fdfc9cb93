//! Properties of the packet crate, checked against etherparse as an independent parser and builder, and fuzz targets.
#![allow(clippy::unwrap_used)] // helpers of tests fail the test by it

mod fixtures;
mod fuzz;
mod generate;
mod properties;
