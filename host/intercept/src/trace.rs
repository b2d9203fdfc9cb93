//! The few ptrace calls that the injector needs, on one thread of another process.
#![allow(unsafe_code)]

use crate::error::Error;
use crate::kernel_code;
use std::cell::Cell;
use std::fs::File;
use std::io::Error as IoError;
use std::os::unix::fs::FileExt;

/// Code of x86-64.
const MOV_EAX: u8 = 0xb8;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
const TRAP: u8 = 0xcc;
/// Of Linux: who may, is told of a filter; EINVAL where there is none.
const PTRACE_SECCOMP_GET_METADATA: libc::c_uint = 0x420d;
/// `EXEC_FAILED` of `blob/weir.h`: in a register of who makes a child only to say so.
pub(crate) const EXEC_FAILED: u64 = 0x6465_6c69_6166_2072;
/// How the end of a call is told from a signal.
const CALL_ENDS: i32 = libc::SIGTRAP | 0x80;

thread_local! {
    /// A tracee of this thread could not be let go: it is when the thread ends.
    static STUCK: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread must end, so that the kernel lets go whom it traces.
pub(crate) fn must_end() -> bool {
    STUCK.get()
}

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
    /// A step.
    Trap,
    /// The end of a system call, when that was wanted.
    Call,
    /// A child that it waited for (vfork) is over.
    Child,
    /// Anything else.
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
        let stops = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACEVFORKDONE | libc::PTRACE_O_TRACESYSGOOD;
        let options = stops as usize;
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
            (libc::PTRACE_EVENT_VFORK_DONE, _) => Stop::Child,
            (0, libc::SIGTRAP) => Stop::Trap,
            (0, CALL_ENDS) => Stop::Call,
            (0, signal) => Stop::Signal(signal),
            _ => Stop::Other,
        }))
    }

    /// Lets it go on; `signal` is delivered, 0 for none.
    pub(crate) fn go_on(&self, signal: i32) -> Result<(), Error> {
        self.ask(libc::PTRACE_CONT, signal as usize)
    }

    pub(crate) fn registers(&self) -> Result<libc::user_regs_struct, Error> {
        // SAFETY: plain numbers, all zero is a value.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        self.ask(libc::PTRACE_GETREGS, &raw mut registers as usize)?;
        Ok(registers)
    }

    fn set_registers(&self, registers: &libc::user_regs_struct) -> Result<(), Error> {
        self.ask(libc::PTRACE_SETREGS, std::ptr::from_ref(registers) as usize)
    }

    /// With these registers, but at `place`.
    pub(crate) fn begin_at(&self, registers: &libc::user_regs_struct, place: u64) -> Result<(), Error> {
        let mut after = *registers;
        after.rip = place;
        // There is no call left that the kernel could want to make again.
        after.orig_rax = u64::MAX;
        self.set_registers(&after)
    }

    /// The same, with a number in the register that `weir_boot` of `blob/entry.S` takes it from.
    pub(crate) fn begin_with(
        &self,
        registers: &libc::user_regs_struct,
        place: u64,
        told: u64,
    ) -> Result<(), Error> {
        self.begin_at(&libc::user_regs_struct { rbx: told, ..*registers }, place)
    }

    fn word(&self, at: u64) -> Result<u64, IoError> {
        // SAFETY: PEEKTEXT gives the word by its result; -1 is a word like others, errno tells.
        let word = unsafe {
            *libc::__errno_location() = 0;
            libc::ptrace(libc::PTRACE_PEEKTEXT, self.thread, at as usize, 0)
        };
        // SAFETY: reading our own errno.
        if word == -1 && unsafe { *libc::__errno_location() } != 0 {
            return Err(IoError::last_os_error());
        }
        Ok(word as u64)
    }

    /// Goes on by `how` until it stops as wanted, keeping signals for later.
    fn run_to(
        &mut self,
        how: libc::c_uint,
        is_there: impl Fn(Stop, &libc::user_regs_struct) -> bool,
    ) -> Result<libc::user_regs_struct, Error> {
        loop {
            self.ask(how, 0)?;
            match self.stop(true)? {
                Some(stop @ (Stop::Trap | Stop::Call)) => {
                    let registers = self.registers()?;
                    if is_there(stop, &registers) {
                        return Ok(registers);
                    }
                    if stop == Stop::Trap {
                        self.missed.push(libc::SIGTRAP);
                    }
                }
                Some(Stop::Signal(signal)) => self.missed.push(signal),
                Some(Stop::Gone) => return Err(Error::Refused("the process ended".to_owned())),
                Some(Stop::Exec | Stop::Child | Stop::Other) | None => {}
            }
        }
    }

    /// Makes the tracee, which is in its stop at exec with `begin` as registers, make a system call before the program's first instruction.
    /// Where this fails its registers are as before; else the caller says how it goes on.
    pub(crate) fn call(
        &mut self,
        begin: &libc::user_regs_struct,
        number: u32,
        arguments: [u64; 6],
    ) -> Result<u64, Error> {
        let place = kernel_code::place().and_then(|place| Some(kernel_code::of(self.thread)? + place));
        let asked = match place {
            Some(place) => self.call_at(place, begin, number, arguments),
            None => self.call_at_entry(begin, number, arguments),
        };
        let answer = asked.and_then(|answer| match answer as i64 {
            error @ -4095..0 => {
                Err(Error::io("a system call of the program", IoError::from_raw_os_error(-error as i32)))
            }
            _ => Ok(answer),
        });
        if answer.is_err() {
            self.begin_at(begin, begin.rip)?;
        }
        answer
    }

    /// At `place`, which is as `kernel_code` says. If we die at any moment of this, the program begins as ever: the word in front of its stack
    /// leads there.
    fn call_at(
        &mut self,
        place: u64,
        begin: &libc::user_regs_struct,
        number: u32,
        arguments: [u64; 6],
    ) -> Result<u64, Error> {
        // The end of the exec sets the register to zero that has the number.
        self.run_to(libc::PTRACE_SYSCALL, |stop, _| stop == Stop::Call)?;
        let stack = begin.rsp - size_of::<u64>() as u64;
        request(libc::PTRACE_POKEDATA, self.thread, stack as usize, begin.rip as usize)
            .map_err(|error| Error::io("writing in front of the program's stack", error))?;
        let mut asking = *begin;
        [asking.rdi, asking.rsi, asking.rdx, asking.r10, asking.r8, asking.r9] = arguments;
        (asking.rip, asking.rsp, asking.rax, asking.orig_rax) = (place, stack, u64::from(number), u64::MAX);
        self.set_registers(&asking)?;
        let behind = place + SYSCALL.len() as u64;
        // Its beginning and its end. Not by a single step, which the program would go on with, and end by, if we died.
        self.run_to(libc::PTRACE_SYSCALL, |stop, at| stop == Stop::Call && at.rip == behind)?;
        let after = self.run_to(libc::PTRACE_SYSCALL, |stop, at| stop == Stop::Call && at.rip == behind)?;
        Ok(after.rax)
    }

    /// At the program's entry. One stop: eight bytes of it become the call and a trap for a moment, in which we must not die. The number is
    /// set by code, as the end of the exec sets the register to zero.
    fn call_at_entry(
        &mut self,
        begin: &libc::user_regs_struct,
        number: u32,
        arguments: [u64; 6],
    ) -> Result<u64, Error> {
        let code = |error| Error::io("writing a system call into the program", error);
        let [n0, n1, n2, n3] = number.to_le_bytes();
        let call = [MOV_EAX, n0, n1, n2, n3, SYSCALL[0], SYSCALL[1], TRAP];
        let (place, behind) = (begin.rip as usize, begin.rip + call.len() as u64);
        let old = self.word(begin.rip).map_err(code)?;
        request(libc::PTRACE_POKETEXT, self.thread, place, u64::from_le_bytes(call) as usize)
            .map_err(code)?;
        let mut asking = *begin;
        [asking.rdi, asking.rsi, asking.rdx, asking.r10, asking.r8, asking.r9] = arguments;
        let is_there = |stop: Stop, at: &libc::user_regs_struct| stop == Stop::Trap && at.rip == behind;
        let asked = self.set_registers(&asking).and_then(|()| self.run_to(libc::PTRACE_CONT, is_there));
        request(libc::PTRACE_POKETEXT, self.thread, place, old as usize).map_err(code)?;
        asked.map(|after| after.rax)
    }

    /// Whether system calls are filtered; nothing when the kernel does not tell us in this way.
    pub(crate) fn has_filter(&self) -> Option<bool> {
        // Filter number 0, and room for its flags.
        let mut about = [0u64; 2];
        let asked = request(
            PTRACE_SECCOMP_GET_METADATA,
            self.thread,
            size_of_val(&about),
            about.as_mut_ptr() as usize,
        );
        match asked.err().and_then(|error| error.raw_os_error()) {
            None => Some(true),
            Some(libc::EINVAL) => Some(false),
            Some(_) => None,
        }
    }

    /// Reads so much of its memory, or less where it ends.
    pub(crate) fn read(&self, at: u64, bytes: usize) -> Option<Vec<u8>> {
        let mut read = Vec::<u8>::with_capacity(bytes);
        let local = libc::iovec { iov_base: read.as_mut_ptr().cast(), iov_len: bytes };
        let remote = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: bytes };
        // SAFETY: writes at most as many bytes as there is room for; the other side is another process's memory, checked by the kernel.
        let got =
            unsafe { libc::process_vm_readv(self.thread, &raw const local, 1, &raw const remote, 1, 0) };
        let got = usize::try_from(got).ok()?;
        // SAFETY: the kernel wrote so many.
        unsafe { read.set_len(got) };
        Some(read)
    }

    /// The same, all of it.
    pub(crate) fn read_all(&self, at: u64, bytes: u64) -> Result<Vec<u8>, Error> {
        if bytes == 0 {
            return Ok(Vec::new());
        }
        self.read(at, bytes as usize)
            .filter(|read| read.len() as u64 == bytes)
            .ok_or_else(|| Error::io("hearing a program", std::io::Error::last_os_error()))
    }

    /// Writes where it may not write itself, in a copy of its own.
    pub(crate) fn write_code(&self, at: u64, code: &[u8]) -> Result<(), Error> {
        // In one piece, unless the kernel was told to let nobody write so (`proc_mem.force_override`).
        let memory = File::options().write(true).open(format!("/proc/{}/mem", self.thread));
        if memory.and_then(|memory| memory.write_all_at(code, at)).is_ok() {
            return Ok(());
        }
        for (number, part) in code.chunks(size_of::<u64>()).enumerate() {
            let mut word = [0; size_of::<u64>()];
            word[..part.len()].copy_from_slice(part);
            let place = at as usize + number * size_of::<u64>();
            request(libc::PTRACE_POKEDATA, self.thread, place, u64::from_le_bytes(word) as usize)
                .map_err(|error| Error::io("writing code into the program", error))?;
        }
        Ok(())
    }

    /// Writes into its memory, one part after the other.
    pub(crate) fn write<const PARTS: usize>(&self, parts: [(u64, &[u8]); PARTS]) -> Result<(), Error> {
        let local = parts.map(|(_, bytes)| libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        });
        let remote =
            parts.map(|(at, bytes)| libc::iovec { iov_base: at as *mut libc::c_void, iov_len: bytes.len() });
        let count = PARTS as libc::c_ulong;
        // SAFETY: reads our slices; the other side is another process's memory, checked by the kernel.
        let written =
            unsafe { libc::process_vm_writev(self.thread, local.as_ptr(), count, remote.as_ptr(), count, 0) };
        if written == parts.iter().map(|(_, bytes)| bytes.len() as isize).sum::<isize>() {
            Ok(())
        } else {
            Err(Error::last("writing into the program's memory"))
        }
    }

    /// Until it stands at the beginning of its new program. False when it will not stand there: the exec failed, or it ended.
    pub(crate) fn wait_for_program(&mut self) -> Result<bool, Error> {
        loop {
            match self.stop(true)? {
                Some(Stop::Exec) => return Ok(true),
                Some(Stop::Gone) => return Ok(false),
                Some(Stop::Child) if self.registers()?.r8 == EXEC_FAILED => return Ok(false),
                Some(Stop::Signal(signal)) => self.go_on(signal)?,
                Some(Stop::Trap | Stop::Call | Stop::Child | Stop::Other) | None => self.go_on(0)?,
            }
        }
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if !self.attached {
            return;
        }
        let first = self.missed.first().copied().unwrap_or(0);
        // A thread that does not stand still cannot be let go; it is when it ends, or our thread does.
        if request(libc::PTRACE_DETACH, self.thread, 0, first as usize).is_err() {
            STUCK.set(true);
        }
        for signal in self.missed.iter().skip(1) {
            // SAFETY: sends a signal, as its sender meant to.
            unsafe { libc::syscall(libc::SYS_tkill, self.thread, *signal) };
        }
    }
}

/// Says to who traces this thread, because it is about to begin a program, that it does not: see `weir_exec_failed` of `blob/exec.c`.
pub(crate) fn let_go() {
    // SAFETY: the child is a copy that ends at once and touches nothing; we wait for it, as nobody else is told of it.
    unsafe {
        let child = libc::syscall(libc::SYS_clone, libc::CLONE_VFORK, 0, 0, 0, EXEC_FAILED);
        if child == 0 {
            libc::syscall(libc::SYS_exit, 0);
        } else if child > 0 {
            libc::waitpid(child as i32, std::ptr::null_mut(), libc::__WALL);
        }
    }
}
