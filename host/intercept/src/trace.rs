//! The few ptrace calls that the injector needs, on one thread of another process.
#![allow(unsafe_code)]

use crate::error::Error;
use std::io::Error as IoError;

/// A thread that we trace. It is let go when this is dropped.
#[derive(Debug)]
pub(crate) struct Tracee {
    pub(crate) thread: i32,
    attached: bool,
    /// Signals that came meanwhile, to be sent again.
    missed: Vec<i32>,
}

/// What a tracee stopped for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It begins a new program.
    Exec,
    /// A step, or the end of a system call.
    Trap,
    /// Anything else, such as PTRACE_INTERRUPT.
    Other,
    /// A signal that the program should get.
    Signal(i32),
    /// It is no more.
    Gone,
}

fn request(what: libc::c_uint, thread: i32, address: usize, data: usize) -> Result<i64, IoError> {
    // SAFETY: requests that take pointers are only made below, with pointers that outlive the call; the others take
    // plain numbers.
    let result = unsafe { libc::ptrace(what, thread, address, data) };
    if result < 0 { Err(IoError::last_os_error()) } else { Ok(result) }
}

impl Tracee {
    /// Seizes `thread`; it does not stop.
    pub(crate) fn seize(thread: i32) -> Result<Tracee, Error> {
        let options = libc::PTRACE_O_TRACEEXEC as usize;
        request(libc::PTRACE_SEIZE, thread, 0, options).map_err(|error| Error::io("ptrace", error))?;
        Ok(Tracee { thread, attached: true, missed: Vec::new() })
    }

    fn ask(&self, what: libc::c_uint, data: usize) -> Result<(), Error> {
        request(what, self.thread, 0, data).map(drop).map_err(|error| Error::io("ptrace", error))
    }

    /// Looks for a stop; waits for one if told.
    pub(crate) fn stop(&mut self, wait: bool) -> Result<Option<Stop>, Error> {
        let mut status = 0;
        let flags = libc::__WALL | libc::__WNOTHREAD | if wait { 0 } else { libc::WNOHANG };
        // Any of this thread's: a thread that is not the first takes on the first's number when it begins a program.
        // SAFETY: `status` is ours.
        let found = unsafe { libc::waitpid(-1, &raw mut status, flags) };
        match found {
            0 => return Ok(None),
            pid if pid > 0 => self.thread = pid,
            _ => {
                let error = IoError::last_os_error();
                self.attached = error.raw_os_error() != Some(libc::ECHILD);
                return if self.attached { Err(Error::io("waitpid", error)) } else { Ok(Some(Stop::Gone)) };
            }
        }
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            self.attached = false;
            return Ok(Some(Stop::Gone));
        }
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        Ok(Some(match (event, signal) {
            (libc::PTRACE_EVENT_EXEC, _) => Stop::Exec,
            (0, libc::SIGTRAP) => Stop::Trap,
            (0, signal) => Stop::Signal(signal),
            _ => Stop::Other,
        }))
    }

    /// Lets it go on; `signal` is delivered, 0 for none.
    pub(crate) fn go_on(&self, signal: i32) -> Result<(), Error> {
        self.ask(libc::PTRACE_CONT, signal as usize)
    }

    /// Goes on to the next trap of `how`, keeping signals for later.
    fn run_to_trap(&mut self, how: libc::c_uint) -> Result<(), Error> {
        loop {
            self.ask(how, 0)?;
            match self.stop(true)? {
                Some(Stop::Trap) => return Ok(()),
                Some(Stop::Signal(signal)) => self.missed.push(signal),
                Some(Stop::Gone) => return Err(Error::Refused("the process ended".to_owned())),
                Some(Stop::Exec | Stop::Other) | None => {}
            }
        }
    }

    /// From the stop at exec to the end of that system call: nothing of the program has run then.
    pub(crate) fn leave_exec(&mut self) -> Result<(), Error> {
        self.run_to_trap(libc::PTRACE_SYSCALL)
    }

    pub(crate) fn registers(&self) -> Result<libc::user_regs_struct, Error> {
        // SAFETY: plain numbers, all zero is a value.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        self.ask(libc::PTRACE_GETREGS, &raw mut registers as usize)?;
        Ok(registers)
    }

    pub(crate) fn set_registers(&self, registers: &libc::user_regs_struct) -> Result<(), Error> {
        self.ask(libc::PTRACE_SETREGS, std::ptr::from_ref(registers) as usize)
    }

    /// Makes the tracee make a system call where it stands. Its registers and code are as before afterwards.
    pub(crate) fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<u64, Error> {
        let before = self.registers()?;
        let at = before.rip as usize;
        let code = |error| Error::io("writing a system call into the program", error);
        // SAFETY: PEEKTEXT gives the word by its result; -1 is a word like others, errno tells.
        let old = unsafe {
            *libc::__errno_location() = 0;
            libc::ptrace(libc::PTRACE_PEEKTEXT, self.thread, at, 0)
        };
        // SAFETY: reading our own errno.
        if old == -1 && unsafe { *libc::__errno_location() } != 0 {
            return Err(code(IoError::last_os_error()));
        }
        request(libc::PTRACE_POKETEXT, self.thread, at, ((old as u64 & !0xffff) | 0x050f) as usize)
            .map_err(code)?;
        let mut asking = before;
        asking.rax = number as u64;
        asking.orig_rax = u64::MAX;
        [asking.rdi, asking.rsi, asking.rdx, asking.r10, asking.r8, asking.r9] = arguments;
        self.set_registers(&asking)?;
        self.run_to_trap(libc::PTRACE_SINGLESTEP)?;
        let result = self.registers()?.rax;
        request(libc::PTRACE_POKETEXT, self.thread, at, old as usize).map_err(code)?;
        let mut after = before;
        after.orig_rax = u64::MAX;
        self.set_registers(&after)?;
        match result as i64 {
            error @ -4095..0 => {
                Err(Error::io("a system call of the program", IoError::from_raw_os_error(-error as i32)))
            }
            _ => Ok(result),
        }
    }

    /// Writes into its memory.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: bytes.len() };
        // SAFETY: reads our slice; the other side is another process's memory, checked by the kernel.
        let written =
            unsafe { libc::process_vm_writev(self.thread, &raw const local, 1, &raw const remote, 1, 0) };
        if written == bytes.len() as isize {
            Ok(())
        } else {
            Err(Error::last("writing into the program's memory"))
        }
    }

    /// Stops it wherever it is, so that it can be let go.
    pub(crate) fn interrupt(&mut self) -> Result<(), Error> {
        self.ask(libc::PTRACE_INTERRUPT, 0)?;
        if let Some(Stop::Signal(signal)) = self.stop(true)? {
            self.missed.push(signal);
        }
        Ok(())
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if !self.attached {
            return;
        }
        let first = self.missed.first().copied().unwrap_or(0);
        // A thread that does not stand still cannot be let go; it is then, when it ends or we do.
        let _ = request(libc::PTRACE_DETACH, self.thread, 0, first as usize);
        for signal in self.missed.iter().skip(1) {
            // SAFETY: sends a signal, as its sender meant to.
            unsafe { libc::syscall(libc::SYS_tkill, self.thread, *signal) };
        }
    }
}
