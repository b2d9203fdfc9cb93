//! The injector: programs that are about to begin another one ask it, by a socket, to be there.
//!
//! A thread a question, as only the thread that seized may trace. It ends when the program has begun and is let go,
//! which is before the program's first instruction.

use crate::blob::Blob;
use crate::error::Error;
use crate::inject::inject;
use crate::judge;
use crate::places::Places;
use crate::trace::{Stop, Tracee};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Programs that may begin at once; others are not intercepted.
const BEGINNING_MAX: usize = 64;
/// Different reasons that are counted apart.
const REASONS_MAX: usize = 64;
/// Files that are looked through at once; others wait for the next process that meets them.
const LOOKING_MAX: usize = 4;
/// Bytes of a question: which thread is about to begin a program; 0, and a part of a file (offset, bytes) whose descriptor
/// comes along, of one that tells of a file.
const QUESTION_BYTES: usize = 4;
const FILE_BYTES: usize = 24;
/// How often a program that is about to begin is looked at for signals meanwhile.
const LOOK_MS: i64 = 5;
/// How long a peer may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);

/// What an injector did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// Programs that began with the blob.
    pub injected: u64,
    /// Programs that did not, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Parts of files that processes showed because nothing was known of them.
    pub shown: u64,
    /// Parts of program files and libraries whose system calls are known, and need not be looked for.
    pub known: u64,
}

#[derive(Debug)]
struct Shared {
    blob: Blob,
    ended: AtomicBool,
    beginning: AtomicUsize,
    injected: AtomicU64,
    refused: Mutex<BTreeMap<String, u64>>,
    places: Places,
    looking: AtomicUsize,
    shown: AtomicU64,
}

/// An injector that serves until it is dropped.
#[derive(Debug)]
pub struct Injector {
    name: String,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

/// Whether programs can be intercepted on this machine.
///
/// # Errors
/// [`Error::Machine`] with what is missing.
pub fn possible() -> Result<(), Error> {
    const FSGSBASE: usize = 1 << 1;
    if !cfg!(target_arch = "x86_64") {
        return Err(Error::Machine("only x86-64 is known"));
    }
    if rustix::param::linux_hwcap().1 & FSGSBASE == 0 {
        return Err(Error::Machine("processor or kernel lacks FSGSBASE"));
    }
    Ok(())
}

impl Injector {
    /// Begins to serve at the abstract socket `name`. `client` is what the blob's client is told.
    ///
    /// # Errors
    /// When the machine cannot do it or the name is taken.
    pub fn start(mut blob: Blob, name: &str, client: &[u8]) -> Result<Injector, Error> {
        possible()?;
        blob.configure(name, client)?;
        let failed = |error| Error::io("listening for programs", error);
        let address = SocketAddr::from_abstract_name(name).map_err(failed)?;
        let listener = UnixListener::bind_addr(&address).map_err(failed)?;
        let shared = Arc::new(Shared {
            blob,
            ended: AtomicBool::new(false),
            beginning: AtomicUsize::new(0),
            injected: AtomicU64::new(0),
            refused: Mutex::default(),
            places: Places::default(),
            looking: AtomicUsize::new(0),
            shown: AtomicU64::new(0),
        });
        let serving = shared.clone();
        let builder = std::thread::Builder::new().name("injector".to_owned());
        let listener = builder.spawn(move || listen(&listener, &serving)).map_err(failed)?;
        Ok(Injector { name: name.to_owned(), shared, listener: Some(listener) })
    }

    /// Name of the socket.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it did so far.
    pub fn figures(&self) -> Figures {
        Figures {
            injected: self.shared.injected.load(Ordering::Relaxed),
            refused: self.shared.refused.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            known: self.shared.places.len() as u64,
            shown: self.shared.shown.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        // Wakes the listener.
        if let Ok(address) = SocketAddr::from_abstract_name(&self.name) {
            let _ = UnixStream::connect_addr(&address);
        }
        if let Some(listener) = self.listener.take()
            && listener.join().is_err()
        {
            tracing::warn!("the injector's listener panicked");
        }
    }
}

fn listen(listener: &UnixListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.ended.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else { continue };
        if shared.beginning.fetch_add(1, Ordering::Relaxed) >= BEGINNING_MAX {
            shared.beginning.fetch_sub(1, Ordering::Relaxed);
            shared.refuse("too many programs begin at once");
            continue;
        }
        let own = shared.clone();
        let serve = move || {
            if let Err(error) = own.serve(stream) {
                own.refuse(&match error {
                    Error::Refused(reason) => reason,
                    other => other.to_string(),
                });
            }
            own.beginning.fetch_sub(1, Ordering::Relaxed);
        };
        if std::thread::Builder::new().name("inject".to_owned()).spawn(serve).is_err() {
            shared.beginning.fetch_sub(1, Ordering::Relaxed);
            shared.refuse("no thread to inject by");
        }
    }
}

impl Shared {
    fn refuse(&self, reason: &str) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let key = if refused.len() < REASONS_MAX || refused.contains_key(reason) {
            reason
        } else {
            "other reasons"
        };
        *refused.entry(key.to_owned()).or_default() += 1;
    }

    fn serve(&self, mut stream: UnixStream) -> Result<(), Error> {
        let asked = |error| Error::io("hearing a program", error);
        stream.set_read_timeout(Some(PATIENCE)).map_err(asked)?;
        let peer = rustix::net::sockopt::socket_peercred(&stream)
            .map_err(|error| Error::io("asking who it is", error))?;
        let (question, file) = hear(&stream)?;
        let thread = i32::from_le_bytes(question[..QUESTION_BYTES].try_into().unwrap_or_default());
        if let Some(file) = file {
            return self.look(&question, file);
        }
        if let Some(reason) = judge::thread(thread, peer.pid.as_raw_nonzero().get()) {
            // Whoever hears nothing goes on without us.
            let _ = stream.write_all(b"n");
            return Err(Error::Refused(reason));
        }
        let mut tracee = Tracee::seize(thread)?;
        stream.write_all(b"y").map_err(asked)?;
        if !wait_for_program(&mut stream, &mut tracee)? {
            drop(tracee);
            // It waits for this, if it still lives.
            let _ = stream.write_all(b"d");
            return Ok(());
        }
        if let Some(reason) = judge::program(tracee.thread) {
            return Err(Error::Refused(reason));
        }
        inject(&mut tracee, &self.blob, &self.places.written())?;
        self.injected.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Looks through a part of a file that a process met.
    fn look(&self, question: &[u8], file: OwnedFd) -> Result<(), Error> {
        let word = |at: usize| question[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        if self.looking.fetch_add(1, Ordering::Relaxed) < LOOKING_MAX
            && let Err(error) = self.places.learn(&File::from(file), word(8), word(16))
        {
            tracing::debug!("a file of code was not looked through: {error}");
        }
        self.looking.fetch_sub(1, Ordering::Relaxed);
        self.shown.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// The question of a process, and the file that it shows.
fn hear(stream: &UnixStream) -> Result<([u8; FILE_BYTES], Option<OwnedFd>), Error> {
    let mut question = [0; FILE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut came = RecvAncillaryBuffer::new(&mut space);
    let got = {
        let mut parts = [std::io::IoSliceMut::new(&mut question)];
        let got = recvmsg(stream, &mut parts, &mut came, RecvFlags::CMSG_CLOEXEC);
        got.map_err(|error| Error::io("hearing a program", error))?.bytes
    };
    let file = came.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    match (got, &file) {
        (QUESTION_BYTES, None) | (FILE_BYTES, Some(_)) => Ok((question, file)),
        _ => Err(Error::Refused("it asked what is no question".to_owned())),
    }
}

/// Until the tracee stands at the beginning of its new program. False when it will not: the exec failed, or it ended.
fn wait_for_program(stream: &mut UnixStream, tracee: &mut Tracee) -> Result<bool, Error> {
    let patience = Timespec { tv_sec: 0, tv_nsec: LOOK_MS * 1_000_000 };
    let mut closed = false;
    loop {
        // The socket closes when the program begins; only then it is worth waiting.
        match tracee.stop(closed)? {
            Some(Stop::Exec) => return Ok(true),
            Some(Stop::Gone) => return Ok(false),
            Some(Stop::Signal(signal)) => tracee.go_on(signal)?,
            Some(Stop::Trap | Stop::Other) => tracee.go_on(0)?,
            None => {}
        }
        if closed {
            continue;
        }
        let mut ready = [PollFd::new(&*stream, PollFlags::IN)];
        if rustix::event::poll(&mut ready, Some(&patience)).map_err(|error| Error::io("waiting", error))? == 0
        {
            continue;
        }
        let mut word = [0; 1];
        match stream.read(&mut word) {
            Ok(1) => {
                tracee.interrupt()?;
                return Ok(false);
            }
            _ => closed = true,
        }
    }
}
