//! Interception: a library that is put into foreign programs and sees their system calls.
//!
//! Lembke, chapter 4.4.2 (system call redirection), for a stock kernel and unmodified libraries. Departure: the paper
//! changes libc; here code is put into the process at exec and the places that make system calls are patched, which
//! reaches static and Go programs too.
//!
//! - `blob/`: the code in the process. C and assembly, built without vector registers, libc, relocations
//!   (docs/decisions/0010): entry, threads, signals, patcher, exec, and a client that serves calls; `every.c`: calls from places that
//!   no pattern fits, where they are wanted (docs/decisions/0037).
//! - [`Blob`]: that code, as data. [`Injector`]: the server that programs ask at each exec; it seizes them with ptrace,
//!   puts the blob in, and lets go before the first instruction. [`announce`]: how the first program asks.
//! - `images`: programs and libraries with their system calls changed, made once a file instead of once a process.
//! - `judge`: which programs are left alone: set-user-id, set-group-id, file capabilities (also when root injects), traced,
//!   under seccomp, of other users, not for x86-64. They run as ever; [`Figures`] says how many and why; [`examine`] says it of a file.
//!
//! Invariant: whatever fails, the program runs. Calls that are not understood go to the kernel.

mod blob;
mod error;
mod examine;
mod images;
mod inject;
mod judge;
mod kernel_code;
mod memory;
mod server;
mod trace;

#[cfg(test)]
mod tests;

pub use blob::{Blob, CLIENT_BYTES_MAX};
pub use error::Error;
pub use examine::{Examined, examine, try_out};
pub use server::{Figures, Injector, Settle, possible};

use std::io::{Read, Write};
use std::marker::PhantomData;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

/// How long an injector may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which system calls of a program are seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Calls {
    /// Those from places of known forms.
    #[default]
    Known,
    /// Every one: those from other places come by a signal (`blob/every.c`).
    Every,
}

/// Tells the injector at the abstract socket `name` that this thread is about to begin a program. Keep what is returned
/// until exec; dropping it instead takes the word back.
///
/// # Errors
/// When there is no injector or it refuses: exec works all the same, without interception.
pub fn announce(name: &str) -> Result<Announced, Error> {
    announce_for(name, Calls::Known)
}

/// The same, and which calls are seen of the program and of those that it starts.
///
/// # Errors
/// As [`announce`].
pub fn announce_for(name: &str, calls: Calls) -> Result<Announced, Error> {
    let failed = |error| Error::io("asking the injector", error);
    let address = SocketAddr::from_abstract_name(name).map_err(failed)?;
    let mut stream = UnixStream::connect_addr(&address).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    if !judge::is_ours(&stream) {
        return Err(Error::Refused(
            "another user listens where the injector did: its daemon is gone".to_owned(),
        ));
    }
    // `struct question` of `blob/weir.h`.
    let mut question = [0; 24];
    question[..4].copy_from_slice(&rustix::thread::gettid().as_raw_nonzero().get().to_le_bytes());
    question[4] = u8::from(calls == Calls::Every);
    stream.write_all(&question).map_err(failed)?;
    let mut answer = [0; 1];
    match stream.read(&mut answer).map_err(failed)? {
        1 if answer == *b"y" => Ok(Announced { of: PhantomData }),
        _ => Err(Error::Refused("the injector refuses this process; 'weir fs status' says why".to_owned())),
    }
}

/// The injector waits for this thread to begin a program.
#[derive(Debug)]
pub struct Announced {
    of: PhantomData<*const ()>,
}

impl Drop for Announced {
    fn drop(&mut self) {
        trace::let_go();
    }
}
