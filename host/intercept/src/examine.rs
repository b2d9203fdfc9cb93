//! What would become of a program, by its file: and whether interception works here at all, by trying it.
#![allow(unsafe_code)]

use crate::error::Error;
use crate::images::CALLS_MAX;
use crate::images::{self, Wanted};
use crate::{Blob, Injector, announce, judge};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A program that is on every machine.
const SMALL_PROGRAM: &str = "/bin/true";
/// How long it may take to be over with it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of one program header, and the most of them that are looked at.
const HEADER_BYTES: usize = 56;
const HEADERS_MAX: usize = 256;
/// Bytes of the largest part of code that is read.
const CODE_BYTES_MAX: u64 = 1 << 30;
const LOADED: u32 = 1;
const EXECUTABLE: u32 = 1;
/// Every call is wanted, and would confuse unseen: then what is left is told apart from bytes that only look like a call.
const ALL: Wanted = Wanted { classes: [1; CALLS_MAX], unseen: [1; CALLS_MAX] };

/// What is to be said of a program's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Examined {
    /// Why it would be left alone.
    pub refused: Option<String>,
    /// Places of its own, without those of its libraries, that make system calls.
    pub places: u64,
    /// Those of them that are of no form that is known, so that their calls go unseen.
    pub left: u64,
}

/// Looks at the file of a program.
///
/// # Errors
/// When it cannot be read.
pub fn examine(program: &Path) -> Result<Examined, Error> {
    let failed = |error| Error::io(&format!("reading {}", program.display()), error);
    let mut file = File::open(program).map_err(failed)?;
    let mut head = [0; 2];
    if file.read_exact(&mut head).is_ok() && head == *b"#!" {
        let refused =
            Some("it is a script: what counts is the program that is named in its first line".to_owned());
        return Ok(Examined { refused, places: 0, left: 0 });
    }
    let refused = judge::file(&file);
    let (mut places, mut left) = (0, 0);
    if refused.is_none() {
        for code in parts(&file).map_err(failed)? {
            let (found, figures) = images::sites(&code, &ALL);
            places += found.len() as u64 + figures.confusing;
            left += figures.confusing;
        }
    }
    Ok(Examined { refused, places, left })
}

/// The parts of a program that are run, by its headers.
fn parts(file: &File) -> std::io::Result<Vec<Vec<u8>>> {
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0)?;
    let word = |bytes: &[u8], at: usize| {
        bytes[at..at + 8].iter().rev().fold(0u64, |all, byte| all << 8 | u64::from(*byte))
    };
    let count = usize::from(u16::from_le_bytes([head[56], head[57]])).min(HEADERS_MAX);
    let mut headers = vec![0; count * HEADER_BYTES];
    file.read_exact_at(&mut headers, word(&head, 32))?;
    let size = file.metadata()?.len();
    let mut found = Vec::new();
    for header in headers.chunks_exact(HEADER_BYTES) {
        let kind_and_flags = word(header, 0);
        let (kind, flags) = (kind_and_flags as u32, (kind_and_flags >> 32) as u32);
        let (offset, bytes) = (word(header, 8), word(header, 32));
        if kind != LOADED || flags & EXECUTABLE == 0 || offset >= size || bytes > CODE_BYTES_MAX {
            continue;
        }
        let mut code = vec![0; bytes.min(size - offset) as usize];
        file.read_exact_at(&mut code, offset)?;
        found.push(code);
    }
    Ok(found)
}

/// Intercepts a small program, whose calls all are passed on.
///
/// # Errors
/// When that does not work on this machine, with what is in the way.
pub fn try_out() -> Result<(), Error> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("weir-try-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let injector = Injector::start(Blob::pass_through()?, &name, &[])?;
    let mut command = Command::new(SMALL_PROGRAM);
    command.stdin(Stdio::null());
    let asked = name.clone();
    // SAFETY: a question by a socket between fork and exec.
    unsafe {
        command.pre_exec(move || {
            // Kept until the program begins. Whether it is refused is seen by the injector's figures.
            std::mem::forget(announce(&asked));
            Ok(())
        });
    }
    // Waiting for its end only when it has closed its output: before that its stops are for the injector, which is threads of ours.
    let output = command.output().map_err(|error| Error::io("running a small program", error))?;
    let status = output.status;
    let begun = Instant::now();
    loop {
        let figures = injector.figures();
        if let Some(reason) = figures.refused.into_keys().next() {
            return Err(Error::Refused(reason));
        }
        match (figures.injected, status.success()) {
            (1.., true) => return Ok(()),
            (1.., false) => {
                return Err(Error::Refused(format!("a program that was intercepted failed: {status}")));
            }
            (0, _) if begun.elapsed() > PATIENCE => {
                return Err(Error::Refused("a program began without being intercepted".to_owned()));
            }
            (0, _) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
