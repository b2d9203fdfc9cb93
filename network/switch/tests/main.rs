//! The switch as a process between network namespaces.
mod forward;
mod lab;
mod plain;
