//! What interception adds to the beginning of a program: `fork`, `exec` and `wait` of a dynamic and of a static one without us, with an
//! injector that knows nothing of the files, and with one that knows them. Interleaved; medians of the time, and of the time of processors
//! that the program and we (who fork, and are the injector) took: on a machine that is busy, that says more.
#![allow(unsafe_code)]

use std::error::Error;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weir_intercept::{Blob, Injector, announce};

const ROUNDS: usize = 101;
const PROGRAMS: [(&str, &[&str]); 3] =
    [("true", &["/bin/true"]), ("bash", &["/bin/bash", "-c", ":"]), ("static", &["/bin/busybox", "true"])];
/// How long an injector may take to look through what it was shown.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time of processors that children which ended, or this process, took; microseconds.
fn processors(who: libc::c_int) -> f64 {
    // SAFETY: plain numbers, all zero is a value; filled in by the kernel.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &raw mut usage);
        usage
    };
    let us = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

fn both() -> f64 {
    processors(libc::RUSAGE_CHILDREN) + processors(libc::RUSAGE_SELF)
}

/// How long it took, and how long processors worked for it.
fn once(program: &[&str], injector: Option<&Injector>) -> Result<(f64, f64), Box<dyn Error>> {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).stdin(Stdio::null());
    let name = injector.map(|injector| injector.name().to_owned());
    // SAFETY: a question by a socket between fork and exec of a process with idle threads only.
    unsafe {
        command.pre_exec(move || {
            if let Some(name) = &name {
                std::mem::forget(announce(name).map_err(std::io::Error::other)?);
            }
            Ok(())
        });
    }
    let (begun, worked) = (Instant::now(), both());
    // Waiting for its end only when it has closed its output: until it begins it stops for the injector, which is a thread of ours.
    let status = command.output()?.status;
    let taken = (begun.elapsed().as_secs_f64() * 1e6, both() - worked);
    if status.success() { Ok(taken) } else { Err(format!("{program:?}: {status}").into()) }
}

fn injector(name: &str) -> Result<Injector, Box<dyn Error>> {
    Ok(Injector::start(Blob::pass_through()?, &format!("weir-exec-{}-{name}", std::process::id()), &[])?)
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    weir_intercept::possible()?;
    let warm = injector("warm")?;
    for (name, program) in PROGRAMS.iter().filter(|(_, program)| Path::new(program[0]).exists()) {
        let (before, begun) = (warm.figures().known, Instant::now());
        let mut last = u64::MAX;
        // Until nothing new comes any more.
        while (warm.figures().known == before || warm.figures().known != last) && begun.elapsed() < PATIENCE {
            last = warm.figures().known;
            once(program, Some(&warm))?;
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut figures = [vec![], vec![], vec![]];
        for round in 0..ROUNDS {
            let cold = injector(&format!("cold-{name}-{round}"))?;
            figures[0].push(once(program, Some(&warm))?);
            figures[1].push(once(program, Some(&cold))?);
            drop(cold);
            // It still makes images of what it was shown.
            std::thread::sleep(Duration::from_millis(50));
            figures[2].push(once(program, None)?);
        }
        for (what, of) in [("", 0), ("_cpu", 1)] {
            let figure = |all: &Vec<(f64, f64)>| {
                median(all.iter().map(|both| if of == 0 { both.0 } else { both.1 }).collect())
            };
            let [warm, cold, plain] = figures.each_ref().map(figure);
            for (known, weir) in [("warm", warm), ("cold", cold)] {
                println!(
                    "RESULT exec {name}_{known}{what} weir={weir:.0}us plain={plain:.0}us ratio={:.2} more={:.0}us",
                    weir / plain,
                    weir - plain
                );
            }
        }
    }
    Ok(())
}
