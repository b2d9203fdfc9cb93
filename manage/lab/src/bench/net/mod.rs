//! `weir bench net`: packets between two endpoints on two hosts, through a subject and its peers, in one run.
//!
//! All paths are set up first and rest. Each window takes every path in turn, in an order that changes from window
//! to window, and runs every test on it. Before and after each test the machine is looked at while all paths rest:
//! where somebody else's work is seen, the test is repeated a bounded number of times, and marked if it stays.
//! Figures are medians over the windows, with their range.

mod kernel;
mod measure;
mod ovs;
mod path;
mod report;
mod topology;

#[cfg(test)]
mod tests;

pub use kernel::{KernelVxlan, PlainVeth};
pub use measure::Metric;
pub use ovs::{Mode, OpenVswitch};
pub use path::{Endpoints, ExternalPath, Path};
pub use report::{PathNote, Report, Sample, Summary};

use crate::bench::load;
use crate::progress::Progress;
use crate::{Error, Result, Scope, interrupt, system};
use measure::{Bench, Test};
use std::ffi::OsString;
use std::time::{Duration, Instant};

/// Name prefix of the bench's own namespaces.
const PREFIX: &str = "weirbn-";
/// Foreign load above this share of the machine spoils a measurement.
const FOREIGN_SHARE_MAX: f64 = 0.15;
/// How often a spoilt or failed measurement is taken again.
const ATTEMPTS_MAX: u32 = 3;
/// How long the machine is looked at while everything rests.
const LOOK: Duration = Duration::from_millis(200);
/// A look this young stands for the moment before the next measurement too.
const LOOK_FRESH: Duration = Duration::from_millis(400);
/// Rest between the end of a measurement and the look after it.
const SETTLE: Duration = Duration::from_millis(60);
/// How long one run waits in all for somebody else's work to end.
const QUIET_WAIT_TOTAL: Duration = Duration::from_secs(300);
/// How long one attempt waits for it.
const QUIET_WAIT: Duration = Duration::from_secs(20);
/// Pause between two looks at a busy machine.
const QUIET_PAUSE: Duration = Duration::from_millis(500);

/// How to run the comparison.
#[derive(Debug, Clone)]
pub struct Options {
    /// Windows, each with every path and test. Seven at least for figures that are shown.
    pub windows: u32,
    /// Length of a TCP stream.
    pub stream_s: u32,
    /// Program and first arguments that reach [`crate::probe::datagram::tool`].
    pub tool: Vec<OsString>,
}

/// The peers that can be set up on this machine, and those that cannot with the reason.
pub fn peers() -> (Vec<Box<dyn Path>>, Vec<PathNote>) {
    let mut paths: Vec<Box<dyn Path>> = vec![Box::new(PlainVeth), Box::new(KernelVxlan)];
    let mut missing = Vec::new();
    for mode in Mode::ALL {
        match OpenVswitch::new(mode) {
            Ok(path) => paths.push(Box::new(path)),
            Err(error) => missing.push(PathNote {
                name: mode.name().to_string(),
                system: "ovs".to_string(),
                text: error.to_string(),
            }),
        }
    }
    (paths, missing)
}

/// Measures `paths` and compares all with `subject`, which is the name of one of them.
/// A path that cannot be set up is left out and named in [`Report::not_run`]; without the subject it is an error.
/// Namespaces and programs are gone when this returns, also after an error or ctrl-c.
pub fn run(mut paths: Vec<Box<dyn Path>>, subject: &str, options: &Options) -> Result<Report> {
    system::require_root()?;
    system::require_installed(&["ip", "iperf3", "sockperf", "ping", "taskset", "ss", "ethtool", "bridge"])?;
    interrupt::install()?;
    let scope = Scope::begin("bench-net", PREFIX)?.clean_on_drop();
    let result = measure_all(&scope, &mut paths, subject, options);
    for path in &mut paths {
        // Cleaning the scope ends what a path could not end itself.
        let _ = path.tear_down();
    }
    let cleaned = scope.clean();
    let report = result?;
    cleaned?;
    Ok(report)
}

/// A path that is ready, and its servers.
struct Ready<'a> {
    path: &'a mut Box<dyn Path>,
    bench: Bench,
}

fn measure_all(
    scope: &Scope,
    paths: &mut [Box<dyn Path>],
    subject: &str,
    options: &Options,
) -> Result<Report> {
    let mut report = Report::new(subject, options.windows);
    let mut ready = set_up(scope, paths, options, &mut report)?;
    let systems: Vec<&str> = ready.iter().map(|ready| ready.path.name()).collect();
    if !systems.contains(&subject) {
        let reason = report.not_run.iter().find(|note| note.name == subject);
        return Err(Error::Output {
            program: "bench net",
            reason: reason.map_or(format!("no path is named {subject}"), |note| note.text.clone()),
        });
    }
    let steps = u64::from(options.windows) * ready.len() as u64;
    let mut progress = Progress::new("bench net", steps);
    let mut guard = Guard::default();
    for window in 0..options.windows {
        for index in order(ready.len(), window) {
            let ready = &mut ready[index];
            progress.step(&format!("window {} of {}: {}", window + 1, options.windows, ready.path.name()));
            for test in Test::ALL {
                interrupt::check()?;
                take(scope, ready, test, window, &mut guard, &mut report)?;
            }
        }
    }
    progress.finish();
    for ready in &mut ready {
        ready.bench.stop()?;
    }
    Ok(report)
}

fn set_up<'a>(
    scope: &Scope,
    paths: &'a mut [Box<dyn Path>],
    options: &Options,
    report: &mut Report,
) -> Result<Vec<Ready<'a>>> {
    let mut ready = Vec::new();
    for path in paths {
        interrupt::check()?;
        let name = path.name().to_string();
        let note = |text: String| PathNote { name: name.clone(), system: path.system().to_string(), text };
        let (conditions, failed) = (note(path.conditions()), note(String::new()));
        let bench = path
            .set_up(scope)
            .and_then(|ends| Bench::start(scope, &conditions.name, ends, &options.tool, options.stream_s));
        match bench {
            Ok(bench) => {
                path.pause()?;
                report.paths.push(conditions);
                ready.push(Ready { path, bench });
            }
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => {
                let complaint = path.complaint().map(|text| format!("; its log says: {text}"));
                path.tear_down()?;
                let text = format!("{error}{}", complaint.unwrap_or_default());
                report.not_run.push(PathNote { text, ..failed });
            }
        }
    }
    Ok(ready)
}

/// The order of `count` paths in a window: begins with another path each time, and turns round every time, so
/// that no path is always first or always after the same one.
fn order(count: usize, window: u32) -> Vec<usize> {
    let window = window as usize;
    let mut order: Vec<usize> = (0..count).map(|index| (index + window) % count).collect();
    if window % 2 == 1 {
        order.reverse();
    }
    order
}

/// Takes one test on one path: again while somebody else's work or a failure spoils it, at most
/// [`ATTEMPTS_MAX`] times. Of spoilt attempts the one with the least foreign load is kept, and marked.
fn take(
    scope: &Scope,
    ready: &mut Ready<'_>,
    test: Test,
    window: u32,
    guard: &mut Guard,
    report: &mut Report,
) -> Result<()> {
    let mut best: Option<(f64, Vec<Sample>)> = None;
    for attempt in 1..=ATTEMPTS_MAX {
        let before = guard.quiet()?;
        ready.path.resume()?;
        let figures = ready.bench.run(test);
        ready.path.pause()?;
        let after = guard.after()?;
        let figures = match figures {
            Ok(figures) => figures,
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => {
                report.failures.push(PathNote {
                    name: ready.path.name().to_string(),
                    system: ready.path.system().to_string(),
                    text: format!("window {}, {}: {error}", window + 1, test.title()),
                });
                ready.bench.restart(scope)?;
                continue;
            }
        };
        let foreign = before.max(after);
        let marked = foreign > FOREIGN_SHARE_MAX;
        if best.as_ref().is_none_or(|(least, _)| foreign < *least) {
            let sample = |(metric, value)| Sample {
                path: ready.path.name().to_string(),
                metric,
                value,
                window,
                busy_before: before,
                busy_after: after,
                attempts: attempt,
                marked,
            };
            best = Some((foreign, figures.into_iter().map(sample).collect()));
        }
        // A machine that never rests would make every repetition as bad as the first.
        if !marked || guard.exhausted() {
            break;
        }
    }
    if let Some((_, samples)) = best {
        report.samples.extend(samples);
    }
    Ok(())
}

/// Looks at the machine while everything of ours rests.
#[derive(Default)]
struct Guard {
    last: Option<(Instant, f64)>,
    waited: Duration,
}

impl Guard {
    /// Waits, within the bounds, until nobody else works; the share of the machine that is busy then.
    fn quiet(&mut self) -> Result<f64> {
        if let Some((when, share)) = self.last
            && when.elapsed() < LOOK_FRESH
            && share <= FOREIGN_SHARE_MAX
        {
            return Ok(share);
        }
        let begin = Instant::now();
        loop {
            let share = self.look()?;
            let waited = begin.elapsed();
            if share <= FOREIGN_SHARE_MAX || waited > QUIET_WAIT || self.waited + waited >= QUIET_WAIT_TOTAL {
                self.waited += waited;
                return Ok(share);
            }
            interrupt::check()?;
            std::thread::sleep(QUIET_PAUSE);
        }
    }

    /// True once the run has waited for as long as it may.
    fn exhausted(&self) -> bool {
        self.waited >= QUIET_WAIT_TOTAL
    }

    fn after(&mut self) -> Result<f64> {
        std::thread::sleep(SETTLE);
        self.look()
    }

    fn look(&mut self) -> Result<f64> {
        let share = load::busy_share(LOOK)?;
        self.last = Some((Instant::now(), share));
        Ok(share)
    }
}
