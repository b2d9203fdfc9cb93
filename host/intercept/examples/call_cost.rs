//! What interception adds to a system call that is passed on: `getpid` by libc and from a place of no known form, in a process without us, in one
//! of which known places are changed, and in one of which every call is seen (`weir fs run --every-call`). Interleaved; the least of many
//! batches of each, as a call takes so little that everything else on the machine only adds.
//!
//! `call_cost run PROGRAM ARGUMENT…` runs a program of which every call is seen, and says how it ended.
#![allow(unsafe_code)]

use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use weir_intercept::{Blob, Calls, Injector, announce_for};

const ROUNDS: usize = 200;
const CALLS: usize = 2000;
const MEASURE: &str = "measure";

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".global call_cost_unknown",
    "call_cost_unknown:",
    "mov %rdi, %rax",
    "nop",
    "syscall",
    "ret",
    options(att_syntax)
);

unsafe extern "C" {
    fn call_cost_unknown(number: i64) -> i64;
}

/// How many nanoseconds a call took: by libc, and from the other place.
type Answer = [f64; 2];

fn batch(call: impl Fn() -> i64) -> f64 {
    let begun = Instant::now();
    for _ in 0..CALLS {
        std::hint::black_box(call());
    }
    begun.elapsed().as_secs_f64() * 1e9 / CALLS as f64
}

fn measure() -> Result<(), Box<dyn Error>> {
    let (mut asked, mut answers) = (std::io::stdin().lock(), std::io::stdout().lock());
    while asked.read(&mut [0])? == 1 {
        // SAFETY: takes nothing, and only gives a number.
        let by_libc = batch(|| unsafe { libc::syscall(libc::SYS_getpid) });
        // SAFETY: the same call.
        let by_other = batch(|| unsafe { call_cost_unknown(libc::SYS_getpid) });
        let answer: Answer = [by_libc, by_other];
        answers.write_all(&answer.iter().flat_map(|ns| ns.to_le_bytes()).collect::<Vec<u8>>())?;
        answers.flush()?;
    }
    Ok(())
}

fn begin(command: &mut Command, of: Option<(&str, Calls)>) {
    let of = of.map(|(name, calls)| (name.to_owned(), calls));
    // SAFETY: a question by a socket between fork and exec of a process with idle threads only.
    unsafe {
        command.pre_exec(move || {
            if let Some((name, calls)) = &of {
                std::mem::forget(announce_for(name, *calls).map_err(std::io::Error::other)?);
            }
            Ok(())
        });
    }
}

struct Measured {
    name: &'static str,
    child: Child,
    to: ChildStdin,
    from: ChildStdout,
    least: Answer,
}

impl Measured {
    fn new(name: &'static str, of: Option<(&str, Calls)>) -> Result<Measured, Box<dyn Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(MEASURE).stdin(Stdio::piped()).stdout(Stdio::piped());
        begin(&mut command, of);
        let mut child = command.spawn()?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("no pipes".into());
        };
        Ok(Measured { name, child, to, from, least: [f64::MAX; 2] })
    }

    fn once(&mut self) -> Result<(), Box<dyn Error>> {
        self.to.write_all(&[1])?;
        let mut answer = [0; size_of::<Answer>()];
        self.from.read_exact(&mut answer)?;
        for (least, bytes) in self.least.iter_mut().zip(answer.chunks_exact(8)) {
            *least = least.min(f64::from_le_bytes(bytes.try_into()?));
        }
        Ok(())
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == MEASURE) {
        return measure();
    }
    let injector =
        Injector::start(Blob::pass_through()?, &format!("weir-calls-{}", std::process::id()), &[])?;
    if let Some(program) = arguments.get(1).filter(|_| arguments[0] == "run") {
        let mut command = Command::new(program);
        begin(command.args(&arguments[2..]), Some((injector.name(), Calls::Every)));
        let mut child = command.spawn()?;
        // Its stops are for the injector, which is threads of this process: who waits for it earlier may take them away.
        while injector.figures().injected == 0 && injector.figures().refused.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let status = child.wait()?;
        println!("{status}; {:?}", injector.figures());
        return Ok(());
    }
    let mut all = [
        Measured::new("plain", None)?,
        Measured::new("known", Some((injector.name(), Calls::Known)))?,
        Measured::new("every", Some((injector.name(), Calls::Every)))?,
    ];
    for round in 0..ROUNDS {
        for turn in 0..all.len() {
            all[(round + turn) % 3].once()?;
        }
    }
    let plain = all[0].least;
    for measured in &all[1..] {
        for (of, place) in ["by_libc", "by_unknown_form"].iter().enumerate() {
            let (weir, plain) = (measured.least[of], plain[of]);
            println!(
                "RESULT call {}_{place} weir={weir:.0}ns plain={plain:.0}ns ratio={:.2} more={:.0}ns",
                measured.name,
                weir / plain,
                weir - plain
            );
        }
    }
    Ok(())
}
