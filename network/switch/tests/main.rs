//! The switch as a process between network namespaces. Needs root; see `lab::missing`.
mod forward;
mod lab;
mod lives;
mod scripts;
