//! Sockets of this process in other network namespaces.

use std::os::fd::AsFd;
use std::time::Duration;
use weir_lab::{Netns, system};

/// Longest wait for something that has to come. Never a measure of anything.
pub const BOUND: Duration = Duration::from_secs(180);

/// Moves the calling thread into a namespace. Sockets that it makes stay there.
pub fn enter(netns: &Netns) {
    let file = std::fs::File::open(netns.path()).unwrap();
    let kind = Some(rustix::thread::LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(file.as_fd(), kind).unwrap();
}

/// Does something on a thread in a namespace.
pub fn within<T: Send>(netns: &Netns, work: impl FnOnce() -> T + Send) -> T {
    let run = || {
        enter(netns);
        work()
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// Polls until a condition holds.
pub fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    system::wait_for(what, BOUND, || Ok(condition())).unwrap_or_else(|error| panic!("{error}"));
}
