//! FileWall in front of a server that the tests play themselves, over loopback: what no real server does on demand.

mod played;
mod proxy;
