//! Properties of the packet crate, checked against etherparse as an independent parser and builder, and fuzz targets.
#![allow(clippy::unwrap_used)] // a test fails by it

mod fixtures;
mod fuzz;
mod generate;
mod layouts;
mod properties;
