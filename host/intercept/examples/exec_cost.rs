//! What interception adds to the beginning of a program, when all its files are known: a launcher, which is intercepted itself, begins it
//! (`posix_spawn`) and waits for it, as a shell does; beside it the same launcher without us. Interleaved, in changing order; medians of the
//! time, and means of the time of processors, of page faults and of context switches that launcher, program and injector (which is this process)
//! took. At last each program by an injector that knows nothing.
//!
//! `exec_cost [ROUNDS]`; `exec_cost ROUNDS NAME` with the injector of a mount (`weir fs status` says it) instead of one whose blob serves
//! nothing: what the mount's daemon takes is not counted then.
#![allow(unsafe_code)]

use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use weir_intercept::{Blob, Injector, announce};

const ROUNDS: usize = 501;
const ROUNDS_COLD: usize = 31;
/// Rounds before those that count.
const ROUNDS_FIRST: usize = 20;
const LAUNCH: &str = "launch";
const PROGRAMS: [(&str, &[&str]); 3] =
    [("true", &["/bin/true"]), ("bash", &["/bin/bash", "-c", ":"]), ("static", &["/bin/busybox", "true"])];
/// How long an injector may take to look through what it was shown.
const PATIENCE: Duration = Duration::from_secs(10);
const SETTLES: Duration = Duration::from_millis(50);

/// Microseconds of time, of processors; page faults, context switches.
type Taken = [f64; 4];

/// The last three, of children that ended or of this process.
fn used(who: libc::c_int) -> [f64; 3] {
    // SAFETY: plain numbers, all zero is a value; filled in by the kernel.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &raw mut usage);
        usage
    };
    let us = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    let switches = (usage.ru_nvcsw + usage.ru_nivcsw) as f64;
    [us(usage.ru_utime) + us(usage.ru_stime), usage.ru_minflt as f64, switches]
}

fn all_used() -> [f64; 3] {
    let (own, children) = (used(libc::RUSAGE_SELF), used(libc::RUSAGE_CHILDREN));
    std::array::from_fn(|of| own[of] + children[of])
}

/// The launcher: for each byte that it is sent it begins the program, and says what that took.
fn launch(program: &[String]) -> Result<(), Box<dyn Error>> {
    let (mut asked, mut answers) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).stdin(Stdio::null()).stdout(Stdio::null());
    while asked.read(&mut [0])? == 1 {
        let (begun, before) = (Instant::now(), all_used());
        let status = command.spawn()?.wait()?;
        let (time, after) = (begun.elapsed().as_secs_f64() * 1e6, all_used());
        if !status.success() {
            return Err(format!("{program:?}: {status}").into());
        }
        let taken = [time, after[0] - before[0], after[1] - before[1], after[2] - before[2]];
        answers.write_all(&taken.iter().flat_map(|figure| figure.to_le_bytes()).collect::<Vec<u8>>())?;
        answers.flush()?;
    }
    Ok(())
}

struct Launcher {
    child: Child,
    to: ChildStdin,
    from: ChildStdout,
}

impl Launcher {
    fn new(program: &[&str], injector: Option<&str>) -> Result<Launcher, Box<dyn Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(LAUNCH).args(program).stdin(Stdio::piped()).stdout(Stdio::piped());
        let name = injector.map(str::to_owned);
        // SAFETY: a question by a socket between fork and exec of a process with idle threads only.
        unsafe {
            command.pre_exec(move || {
                if let Some(name) = &name {
                    std::mem::forget(announce(name).map_err(std::io::Error::other)?);
                }
                Ok(())
            });
        }
        let mut child = command.spawn()?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("no pipes".into());
        };
        Ok(Launcher { child, to, from })
    }

    /// With what this process did meanwhile.
    fn once(&mut self) -> Result<Taken, Box<dyn Error>> {
        let before = used(libc::RUSAGE_SELF);
        self.to.write_all(&[1])?;
        let mut answer = [0; size_of::<Taken>()];
        self.from.read_exact(&mut answer)?;
        let after = used(libc::RUSAGE_SELF);
        let mut taken = [0.0; 4];
        for (figure, bytes) in taken.iter_mut().zip(answer.chunks_exact(8)) {
            *figure = f64::from_le_bytes(bytes.try_into()?);
        }
        for of in 0..3 {
            taken[of + 1] += after[of] - before[of];
        }
        Ok(taken)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn injector(name: &str) -> Result<Injector, Box<dyn Error>> {
    Ok(Injector::start(Blob::pass_through()?, &format!("weir-exec-{}-{name}", std::process::id()), &[])?)
}

/// Median of the time, means of the others.
fn middle(all: &[Taken]) -> Taken {
    let mut times: Vec<f64> = all.iter().map(|taken| taken[0]).collect();
    times.sort_by(f64::total_cmp);
    let mean = |of: usize| all.iter().map(|taken| taken[of]).sum::<f64>() / all.len() as f64;
    [times[times.len() / 2], mean(1), mean(2), mean(3)]
}

fn print(name: &str, weir: &[Taken], plain: &[Taken]) {
    let (weir, plain) = (middle(weir), middle(plain));
    for (of, (what, unit)) in
        [("time", "us"), ("cpu", "us"), ("faults", ""), ("switches", "")].iter().enumerate()
    {
        let (weir, plain) = (weir[of], plain[of]);
        println!(
            "RESULT exec {name}_{what} weir={weir:.1}{unit} plain={plain:.1}{unit} ratio={:.2} more={:.1}{unit}",
            weir / plain,
            weir - plain
        );
    }
}

fn warm(
    name: &str,
    program: &[&str],
    rounds: usize,
    of: &str,
    own: Option<&Injector>,
) -> Result<(), Box<dyn Error>> {
    let (mut weir, mut plain) = (Launcher::new(program, Some(of))?, Launcher::new(program, None)?);
    let (begun, mut last) = (Instant::now(), u64::MAX);
    // Until nothing new comes any more; of another's injector that is not known.
    for _ in 0..ROUNDS_FIRST {
        let shown = own.map_or(0, |injector| injector.figures().shown);
        if own.is_some() && shown == std::mem::replace(&mut last, shown) || begun.elapsed() > PATIENCE {
            break;
        }
        weir.once()?;
        std::thread::sleep(SETTLES);
    }
    let (mut with, mut without) = (vec![], vec![]);
    for round in 0..rounds + ROUNDS_FIRST {
        let (one, other) = if round % 2 == 0 {
            let with = weir.once()?;
            (with, plain.once()?)
        } else {
            let without = plain.once()?;
            (weir.once()?, without)
        };
        if round >= ROUNDS_FIRST {
            with.push(one);
            without.push(other);
        }
    }
    print(&format!("{name}_warm"), &with, &without);
    Ok(())
}

fn cold(name: &str, program: &[&str]) -> Result<(), Box<dyn Error>> {
    let mut plain = Launcher::new(program, None)?;
    let (mut with, mut without) = (vec![], vec![]);
    for round in 0..ROUNDS_COLD {
        let cold = injector(&format!("{name}-{round}"))?;
        let mut weir = Launcher::new(program, Some(cold.name()))?;
        // Of what the launcher showed images are made meanwhile, among them those of libraries that the program has too.
        with.push(weir.once()?);
        without.push(plain.once()?);
    }
    print(&format!("{name}_cold"), &with, &without);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == LAUNCH) {
        return launch(&arguments[1..]);
    }
    weir_intercept::possible()?;
    let rounds = arguments.first().map_or(Ok(ROUNDS), |rounds| rounds.parse())?;
    let own = if arguments.len() < 2 { Some(injector("warm")?) } else { None };
    let name = own.as_ref().map_or_else(|| arguments[1].clone(), |injector| injector.name().to_owned());
    for (program, command) in PROGRAMS.iter().filter(|(_, command)| Path::new(command[0]).exists()) {
        warm(program, command, rounds, &name, own.as_ref())?;
        if own.is_some() {
            cold(program, command)?;
        }
    }
    Ok(())
}
