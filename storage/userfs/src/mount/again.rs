//! A session on a connection that another daemon served until it died.
//!
//! The kernel says what it can only once, to the first daemon, and does not wait for an answer again. The library wants to hear it before it
//! serves. So it hears it from us, over a socket, whose place the connection then takes under the same descriptor: no thread uses it
//! before the session is spawned.
//!
//! What the dead daemon had read and not answered the kernel tells once more when it is asked (`FUSE_NOTIFY_RESEND`, since 6.9). Without
//! that, programs would wait for these answers for ever, so such a mount cannot be served again.
#![allow(unsafe_code)]

use crate::server::Server;
use fuser::{Config, Session};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::Error;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

const NOTIFY_RESEND: u32 = 7;
/// Numbers of `linux/fuse.h`.
const INIT: u32 = 26;
const MAJOR: u32 = 7;
const MINOR: u32 = 40;
const INIT_EXT: u32 = 1 << 30;
/// The bit of passthrough, in the second word of flags.
const PASSTHROUGH_2: u32 = 1 << 5;
const READAHEAD_BYTES: u32 = 128 * 1024;
/// Bytes of a request's head, and of what the kernel says in its first one.
const HEAD_BYTES: usize = 40;
const INIT_BYTES: usize = 64;

/// What the kernel said.
fn first_request(passthrough: bool) -> Vec<u8> {
    let length = (HEAD_BYTES + INIT_BYTES) as u32;
    // Length and kind, then the request's number, which is two words; nobody asks, and of no file.
    let head = [length, INIT, 1, 0];
    let said = [MAJOR, MINOR, READAHEAD_BYTES, INIT_EXT, if passthrough { PASSTHROUGH_2 } else { 0 }];
    let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let mut request = bytes(&head);
    request.resize(HEAD_BYTES, 0);
    request.extend(bytes(&said));
    request.resize(HEAD_BYTES + INIT_BYTES, 0);
    request
}

pub(super) fn session(
    server: Server,
    kernel: &OwnedFd,
    config: Config,
    passthrough: bool,
) -> std::io::Result<Session<Server>> {
    let (own, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::io::write(&own, &first_request(passthrough))?;
    let session = Session::from_fd(server, theirs, config.acl, config)?;
    // SAFETY: both descriptors are open, the second as long as the session, which owns it whatever it is of.
    let moved = unsafe { libc::dup3(kernel.as_raw_fd(), session.as_fd().as_raw_fd(), libc::O_CLOEXEC) };
    if moved < 0 { Err(Error::last_os_error()) } else { Ok(session) }
}

pub(super) fn resend(kernel: &OwnedFd) -> std::io::Result<()> {
    // Length, kind, and no request that it answers.
    let told: Vec<u8> = [16, NOTIFY_RESEND, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    match rustix::io::write(kernel, &told) {
        Ok(_) => Ok(()),
        Err(rustix::io::Errno::INVAL) => {
            Err(Error::other("this kernel cannot tell again what the daemon before was told; Linux 6.9 can"))
        }
        Err(error) => Err(error.into()),
    }
}
