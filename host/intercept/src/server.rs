//! The injector: programs that are about to begin another one ask it, by a socket, to be there.
//!
//! A thread a question at a time, as only the thread that seized may trace. It is free again when the program has begun and is let
//! go, which is before the program's first instruction. A few threads always wait for questions: making one costs a program that
//! begins more than all that is asked of the kernel for it.
//!
//! A process that serves here must not wait for an intercepted child of its own before that has begun: the kernel gives the stops of a child
//! to whichever thread of the process waits, and the injector would wait for ever.

use crate::blob::Blob;
use crate::error::Error;
use crate::images::{Images, Wanted};
use crate::inject::{Given, inject};
use crate::judge::{self, Judged};
use crate::memory::Memory;
use crate::trace::{self, Tracee};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, Shutdown, recvmsg};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Programs that may begin at once; others are not intercepted.
const BEGINNING_MAX: usize = 64;
/// Threads that wait for questions, when there are none.
const WAITING: usize = 3;
/// How long to wait when no connection can be taken, for want of descriptors.
const PAUSE: Duration = Duration::from_millis(10);
/// Different reasons that are counted apart.
const REASONS_MAX: usize = 64;
/// Files that are looked through at once; others wait for the next process that meets them.
const LOOKING_MAX: usize = 4;
/// Of a question: see `EVERY_CALL` of `blob/weir.h`.
const EVERY_CALL: u32 = 1;
/// Bytes of a question: `struct question` of `blob/weir.h`.
const QUESTION_BYTES: usize = 24;
const STASH_BYTES_MAX: u64 = 1 << 20;
/// Bytes that are kept at most of what was said to programs that begin.
const BEGUN_BYTES_MAX: usize = 4 << 20;
/// `thread` of a question: a program that we had begin could not take our code, and says why.
const NOT_BEGUN: i32 = -1;
const STRANGER: &str = "it is asked by another user";
const ELSEWHERE: &str = "it is in another PID namespace than the daemon";
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
    /// Parts of program files and libraries that are known, and need not be searched and changed by each process.
    pub known: u64,
}

/// Does what a program wanted from the one that it becomes, when that one is not intercepted after all. Its process stands still.
pub type Settle = Box<dyn Fn(i32, &[u8]) + Send + Sync>;

struct Shared {
    /// Of the socket.
    name: String,
    blob: Blob,
    /// The blob's, which programs map.
    memory: Memory,
    judged: Judged,
    settle: Settle,
    listener: UnixListener,
    ended: AtomicBool,
    waiting: AtomicUsize,
    beginning: AtomicUsize,
    injected: AtomicU64,
    begun: Mutex<Begun>,
    refused: Mutex<BTreeMap<String, u64>>,
    /// By what is wanted: what the blob says, and every call.
    images: [Images; 2],
    looking: AtomicUsize,
    shown: AtomicU64,
}

/// An injector that serves until it is dropped.
pub struct Injector {
    shared: Arc<Shared>,
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
    pub fn start(blob: Blob, name: &str, client: &[u8]) -> Result<Injector, Error> {
        Injector::start_with(blob, name, client, Box::new(|_, _| {}))
    }

    /// The same, where programs say something to those that they become.
    ///
    /// # Errors
    /// As [`Injector::start`].
    pub fn start_with(mut blob: Blob, name: &str, client: &[u8], settle: Settle) -> Result<Injector, Error> {
        possible()?;
        blob.configure(name, client)?;
        let failed = |error| Error::io("listening for programs", error);
        let address = SocketAddr::from_abstract_name(name).map_err(failed)?;
        let listener = UnixListener::bind_addr(&address).map_err(failed)?;
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            memory: blob.memory()?,
            judged: Judged::default(),
            blob,
            settle,
            listener,
            ended: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            beginning: AtomicUsize::new(0),
            injected: AtomicU64::new(0),
            begun: Mutex::default(),
            refused: Mutex::default(),
            images: Default::default(),
            looking: AtomicUsize::new(0),
            shown: AtomicU64::new(0),
        });
        let injector = Injector { shared };
        for _ in 0..WAITING {
            wait_for_questions(&injector.shared).map_err(failed)?;
        }
        Ok(injector)
    }

    /// Name of the socket.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// What it did so far.
    pub fn figures(&self) -> Figures {
        Figures {
            injected: self.shared.injected.load(Ordering::Relaxed),
            refused: self.shared.refused.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            known: self.shared.images.iter().map(Images::len).sum::<usize>() as u64,
            shown: self.shared.shown.load(Ordering::Relaxed),
        }
    }
}

impl std::fmt::Debug for Injector {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Injector").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        // Nobody connects from here on, and all who wait wake up.
        if let Err(error) = rustix::net::shutdown(&self.shared.listener, Shutdown::Both) {
            tracing::warn!("the injector goes on listening: {error}");
        }
    }
}

/// One more thread that waits for questions.
fn wait_for_questions(shared: &Arc<Shared>) -> std::io::Result<()> {
    let own = shared.clone();
    shared.waiting.fetch_add(1, Ordering::AcqRel);
    let made = std::thread::Builder::new().name("inject".to_owned()).spawn(move || answer_questions(&own));
    if made.is_err() {
        shared.waiting.fetch_sub(1, Ordering::AcqRel);
    }
    made.map(drop)
}

fn answer_questions(shared: &Arc<Shared>) {
    loop {
        let accepted = shared.listener.accept();
        if shared.ended.load(Ordering::Acquire) {
            return;
        }
        let Ok((stream, _)) = accepted else {
            std::thread::sleep(PAUSE);
            continue;
        };
        // The last one that waited: others must not wait for this program.
        if shared.waiting.fetch_sub(1, Ordering::AcqRel) == 1
            && let Err(error) = wait_for_questions(shared)
        {
            tracing::warn!("no thread for programs that begin at the same time: {error}");
        }
        shared.answer(stream);
        if trace::must_end() || shared.waiting.load(Ordering::Acquire) >= WAITING {
            return;
        }
        shared.waiting.fetch_add(1, Ordering::AcqRel);
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

    fn answer(&self, stream: UnixStream) {
        if !judge::is_ours(&stream) {
            self.refuse(STRANGER);
            return;
        }
        if self.beginning.fetch_add(1, Ordering::Relaxed) >= BEGINNING_MAX {
            self.refuse("too many programs begin at once");
        } else if let Err(error) = self.serve(stream) {
            self.refuse(&match error {
                Error::Refused(reason) => reason,
                other => other.to_string(),
            });
        }
        self.beginning.fetch_sub(1, Ordering::Relaxed);
    }

    fn serve(&self, mut stream: UnixStream) -> Result<(), Error> {
        let asked = |error| Error::io("hearing a program", error);
        stream.set_read_timeout(Some(PATIENCE)).map_err(asked)?;
        let peer = judge::peer(&stream)?;
        let (question, file) = hear(&stream)?;
        if let Some(file) = file {
            return self.look(&question, file);
        }
        let thread = question.thread;
        if thread == NOT_BEGUN {
            self.not_begun(peer, &question);
            return Ok(());
        }
        if !peer.is_some_and(|process| judge::is_of(thread, process)) {
            // Whoever hears nothing goes on without us.
            let _ = stream.write_all(b"n");
            let reason = if peer.is_none_or(judge::is_elsewhere) {
                ELSEWHERE
            } else {
                "it asks for a thread of another process"
            };
            return Err(Error::Refused(reason.to_owned()));
        }
        if question.bytes > STASH_BYTES_MAX {
            return Err(Error::Refused("it has too much to say".to_owned()));
        }
        let mut tracee =
            Tracee::seize(thread).map_err(|error| judge::traced(thread).map_or(error, Error::Refused))?;
        // It waits for the answer, and its memory is there until it becomes the other program.
        let stash = tracee.read_all(question.offset, question.bytes)?;
        stream.write_all(b"y").map_err(asked)?;
        drop(stream);
        if !tracee.wait_for_program()? {
            return Ok(());
        }
        let begun = self.begin(&mut tracee, &stash, question.flags);
        if begun.is_err() && !stash.is_empty() {
            (self.settle)(tracee.thread, &stash);
        }
        begun?;
        // It stands still until `tracee` is dropped.
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).add(tracee.thread, stash);
        self.injected.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// A program, which stands still until it hears the end of this, began without the blob.
    fn not_begun(&self, process: Option<i32>, question: &Question) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((process, stash)) = process.and_then(|process| begun.take(process)) else { return };
        drop(begun);
        if !stash.is_empty() {
            (self.settle)(process, &stash);
        }
        self.injected.fetch_sub(1, Ordering::Relaxed);
        self.refuse(&why_not_begun(process, question));
    }

    /// Has the new program begin with the blob, if it may.
    fn begin(&self, tracee: &mut Tracee, stash: &[u8], flags: u32) -> Result<(), Error> {
        if let Some(reason) = judge::filtered(tracee) {
            return Err(Error::Refused(reason));
        }
        let program = self.judged.program(tracee.thread).map_err(Error::Refused)?;
        let table = self.images[usize::from(flags & EVERY_CALL != 0)].table();
        let (blob, memory, table) = (&self.blob, &self.memory, table.as_deref());
        let socket = self.name.as_str();
        inject(tracee, &Given { blob, memory, table, program, stash, flags: u64::from(flags), socket })
    }

    /// Looks through a part of a file that a process met.
    fn look(&self, question: &Question, file: OwnedFd) -> Result<(), Error> {
        let every = question.flags & EVERY_CALL != 0;
        let (file, images) = (File::from(file), &self.images[usize::from(every)]);
        let wanted = if every { &Wanted::EVERY } else { self.blob.wanted() };
        if self.looking.fetch_add(1, Ordering::Relaxed) < LOOKING_MAX
            && let Err(error) = images.learn(&file, question.offset, question.bytes, wanted)
        {
            tracing::debug!("a file of code was not looked through: {error}");
        }
        self.looking.fetch_sub(1, Ordering::Relaxed);
        self.shown.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Why a program could not take our code: by what the kernel told it when it asked for the injector, and for a descriptor of it.
fn why_not_begun(process: i32, question: &Question) -> String {
    let errors = [question.offset, question.bytes].map(|result| -(result as i32));
    match errors.into_iter().find(|error| *error > 0) {
        _ if judge::is_elsewhere(process) => ELSEWHERE.to_owned(),
        Some(libc::EPERM) => {
            "it may not trace the daemon (its user, capabilities, user namespace or Yama's ptrace_scope)"
                .to_owned()
        }
        Some(error) => format!("taking code from the daemon: {}", std::io::Error::from_raw_os_error(error)),
        None => "the daemon's code could not be mapped in it".to_owned(),
    }
}

/// The programs that we had begin last, and what was said to each: for those that say that they could not. What was first goes first.
#[derive(Default)]
struct Begun {
    programs: VecDeque<(i32, Vec<u8>)>,
    bytes: usize,
}

impl Begun {
    fn add(&mut self, process: i32, stash: Vec<u8>) {
        self.bytes += stash.len();
        self.programs.push_back((process, stash));
        while self.programs.len() > BEGINNING_MAX || self.bytes > BEGUN_BYTES_MAX {
            let Some((_, first)) = self.programs.pop_front() else { return };
            self.bytes -= first.len();
        }
    }

    fn take(&mut self, process: i32) -> Option<(i32, Vec<u8>)> {
        let at = self.programs.iter().rposition(|(of, _)| *of == process)?;
        let found = self.programs.remove(at)?;
        self.bytes -= found.1.len();
        Some(found)
    }
}

struct Question {
    thread: i32,
    flags: u32,
    offset: u64,
    bytes: u64,
}

/// The question of a process, and the file that it shows.
fn hear(stream: &UnixStream) -> Result<(Question, Option<OwnedFd>), Error> {
    let mut question = [0; QUESTION_BYTES];
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
    let half = |at: usize| u32::from_le_bytes(question[at..at + 4].try_into().unwrap_or_default());
    let wide = |at: usize| u64::from_le_bytes(question[at..at + 8].try_into().unwrap_or_default());
    let question = Question { thread: half(0) as i32, flags: half(4), offset: wide(8), bytes: wide(16) };
    if got == QUESTION_BYTES && (question.thread == 0) == file.is_some() {
        Ok((question, file))
    } else {
        Err(Error::Refused("it asked what is no question".to_owned()))
    }
}
