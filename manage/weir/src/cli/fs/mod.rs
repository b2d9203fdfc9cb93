//! `weir fs`: user-space file systems. A thin adapter over `weir-userfs`.

mod doctor;

use super::{Failure, Output, output};
use clap::{Args, Subcommand};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_intercept::{Announced, Calls};
use weir_userfs::backend::Held;
use weir_userfs::control::{self, Answer, Question, Status};
use weir_userfs::daemon::Task;
use weir_userfs::keeper;
use weir_userfs::locate;
use weir_userfs::mount::Options;

/// How long a new mount may take until it answers, and how often a person is told that one works on an archive.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest text of a backend, and of a mount point, bytes: that of a path, for the kernel.
const PLACE_BYTES_MAX: usize = 4095;
/// How much is kept of the last that a daemon says, bytes.
const WORDS_BYTES_MAX: usize = 16 * 1024;

/// `weir fs …`
#[derive(Debug, Args)]
pub struct FileSystems {
    /// Where daemons keep their sockets
    #[arg(long, global = true, env = "WEIR_FS_STATE", value_name = "FOLDER")]
    state: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Mount a backend
    Mount(MountArguments),
    /// Serve a mount in the foreground, for service managers
    Serve(MountArguments),
    /// Run a program, and all that it starts, with the files of a mount reached without the kernel
    Run(Run),
    /// Run a shell in the same way
    Shell {
        /// The mount, if there are several
        #[arg(long, value_name = "FOLDER")]
        mount: Option<PathBuf>,
        /// See every system call, also from code of unknown forms and code made at run time; each call costs more
        #[arg(long)]
        every_call: bool,
    },
    /// Show mounts, accelerated processes, operations, latencies and errors
    Status {
        /// How to print
        #[command(flatten)]
        output: Output,
    },
    /// Unmount
    Unmount {
        /// Where it is mounted
        point: PathBuf,
        /// Even while files are open: it goes out of sight now, and ends when the last one is closed
        #[arg(long)]
        lazy: bool,
    },
    /// Diagnose this machine, its mounts and programs, and suggest fixes (exit code 4 if something is wrong)
    Doctor {
        /// How to print
        #[command(flatten)]
        output: Output,
        /// Programs of which to say whether they can be accelerated
        programs: Vec<PathBuf>,
    },
}

#[derive(Debug, Args)]
struct Run {
    /// The mount, if there are several
    #[arg(long, value_name = "FOLDER")]
    mount: Option<PathBuf>,
    /// Fail instead of running through the kernel when the program cannot be accelerated
    #[arg(long)]
    strict: bool,
    /// See every system call, also from code of unknown forms and code made at run time; each call costs more
    #[arg(long)]
    every_call: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

#[derive(Debug, Args)]
struct MountArguments {
    /// What to mount
    #[arg(long, value_name = "KIND:PLACE", help = format!("What to mount: {}", locate::KINDS))]
    backend: String,
    /// Where: an existing folder
    point: PathBuf,
    /// Let nothing be written
    #[arg(long)]
    read_only: bool,
    /// Let other users use it too; permissions of files hold for them (root's mounts always are)
    #[arg(long)]
    allow_others: bool,
    /// For dir: let the daemon read and write instead of the kernel itself: better for many small files that are mostly read
    #[arg(long)]
    cached: bool,
    /// Let device files be devices; without it nobody opens one here (root's mounts only)
    #[arg(long)]
    dev: bool,
    /// Let set-user-id and set-group-id bits count: whoever says what a file is says whose rights it runs with (root's mounts only)
    #[arg(long)]
    suid: bool,
}

impl MountArguments {
    /// # Errors
    /// Which argument is too long for any place.
    fn check(&self) -> Result<(), Failure> {
        for (what, bytes) in
            [("--backend", self.backend.len()), ("the mount point", self.point.as_os_str().len())]
        {
            if bytes > PLACE_BYTES_MAX {
                return Err(Failure::Input(format!(
                    "{what} has {bytes} bytes: at most {PLACE_BYTES_MAX} are taken"
                )));
            }
        }
        Ok(())
    }

    fn task(self, state: PathBuf) -> Task {
        let others = self.allow_others || rustix::process::geteuid().is_root();
        let options = Options {
            source: self.backend.clone(),
            read_only: self.read_only,
            others,
            cached: self.cached,
            kept: true,
            devices: self.dev,
            set_ids: self.suid,
        };
        Task { backend: self.backend, point: self.point, state, options }
    }
}

impl FileSystems {
    /// Runs the command.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let state = self.state.unwrap_or_else(control::state_directory);
        if let Command::Mount(arguments) | Command::Serve(arguments) = &self.command {
            arguments.check()?;
        }
        match self.command {
            Command::Mount(arguments) => mount(&arguments, &state)?,
            Command::Serve(arguments) => serve(arguments.task(state))?,
            Command::Run(run) => return Err(run.run(&state)),
            Command::Shell { mount, every_call } => {
                let shell = std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
                return Err(Run { mount, strict: false, every_call, program: vec![shell] }.run(&state));
            }
            Command::Status { output } => {
                let all = control::all(&state);
                output::print(output.output, &all, || show(&all))?;
            }
            Command::Unmount { point, lazy } => unmount(&point, lazy, &state)?,
            Command::Doctor { output, programs } => return doctor::run(output, &state, &programs),
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Run {
    /// Becomes the program; returns only when that fails.
    fn run(&self, state: &Path) -> Failure {
        let announced = self.announce(state);
        if let Err(failure) = &announced {
            if self.strict {
                return Failure::Missing(failure.to_string());
            }
            tell!("weir: not accelerated: {failure}");
        }
        // Kept until the program begins.
        let error = std::process::Command::new(&self.program[0]).args(&self.program[1..]).exec();
        drop(announced);
        Failure::Io { what: format!("starting {}", self.program[0].display()), error }
    }

    /// Asks the injector of the mount to be there at exec.
    /// Where the kernel has the files itself, there is nobody to ask.
    fn announce(&self, state: &Path) -> Result<Option<Announced>, Failure> {
        let wanted =
            self.mount.as_ref().map(|point| std::fs::canonicalize(point).unwrap_or_else(|_| point.clone()));
        let mounts = control::all(state);
        let mut fitting = mounts.iter().filter(|status| match &wanted {
            Some(point) => Path::new(&status.mount) == point,
            None => status.acceleration.injector.is_some() || status.acceleration.by_kernel.is_some(),
        });
        let status = match (fitting.next(), fitting.next()) {
            (Some(one), None) => one,
            (Some(_), Some(_)) => {
                return Err(Failure::Input("there are several mounts: name one with --mount".to_owned()));
            }
            (None, _) => {
                return Err(Failure::Missing(
                    "no mount can accelerate; 'weir fs status' says why".to_owned(),
                ));
            }
        };
        let acceleration = &status.acceleration;
        if acceleration.by_kernel.is_some() {
            return Ok(None);
        }
        let name = acceleration.injector.as_ref().ok_or_else(|| {
            Failure::Missing(acceleration.why_not.clone().unwrap_or_else(|| "it is not possible".to_owned()))
        })?;
        let calls = if self.every_call { Calls::Every } else { Calls::Known };
        weir_intercept::announce_for(name, calls)
            .map(Some)
            .map_err(|error| Failure::Missing(error.to_string()))
    }
}

fn serve(task: Task) -> Result<(), Failure> {
    let end = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, end.clone()).map_err(Failure::io("listening for signals"))?;
    }
    Ok(keeper::serve(task, &end)?)
}

/// Starts a daemon and waits until it answers, or has ended.
fn mount(arguments: &MountArguments, state: &Path) -> Result<(), Failure> {
    let own = std::env::current_exe().map_err(Failure::io("finding this program"))?;
    let mut command = std::process::Command::new(own);
    command.args(["fs", "serve", "--backend", &arguments.backend]).arg(&arguments.point);
    command.arg("--state").arg(state);
    command.args(arguments.read_only.then_some("--read-only"));
    command.args(arguments.allow_others.then_some("--allow-others"));
    command.args(arguments.cached.then_some("--cached"));
    command.args(arguments.dev.then_some("--dev"));
    command.args(arguments.suid.then_some("--suid"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(Failure::io("starting the daemon"))?;
    let words = words_of(&mut child);
    let mut begun = Instant::now();
    let point = std::fs::canonicalize(&arguments.point).unwrap_or_else(|_| arguments.point.clone());
    while begun.elapsed() < PATIENCE {
        if child.try_wait().map_err(Failure::io("waiting for the daemon"))?.is_some() {
            // A thread that panicked has said why.
            let words = words.join().unwrap_or_default();
            return Err(Failure::Missing(words.trim().trim_start_matches("weir: ").to_owned()));
        }
        if let Ok(Answer::Status(status)) = control::ask(state, &point, &Question::Status)
            && status.is_by(child.id())
        {
            say!("{} is mounted at {}", status.backend, status.mount);
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
        if begun.elapsed() >= PATIENCE && arguments.backend.starts_with("archive:") {
            tell!("weir: process {} is still reading the archive", child.id());
            begun = Instant::now();
        }
    }
    let (id, seconds) = (child.id(), PATIENCE.as_secs());
    Err(Failure::Missing(format!("the daemon (process {id}) has not answered for {seconds} s")))
}

/// What a daemon says until it ends, of which the last is kept. It is read all the time: one that says more than a pipe holds would wait for
/// its reader, and its reader for it.
fn words_of(child: &mut Child) -> JoinHandle<String> {
    let errors = child.stderr.take();
    std::thread::spawn(move || {
        let (mut kept, mut piece) = (VecDeque::new(), [0; 4096]);
        let Some(mut errors) = errors else { return String::new() };
        // What cannot be read is not shown.
        while let Ok(bytes @ 1..) = errors.read(&mut piece) {
            kept.extend(&piece[..bytes]);
            kept.drain(..kept.len().saturating_sub(WORDS_BYTES_MAX));
        }
        String::from_utf8_lossy(kept.make_contiguous()).into_owned()
    })
}

fn unmount(point: &Path, lazy: bool, state: &Path) -> Result<(), Failure> {
    let point = std::fs::canonicalize(point)
        .or_else(|_| std::path::absolute(point))
        .map_err(Failure::io(format!("finding {}", point.display())))?;
    let answer = match control::ask(state, &point, &Question::Unmount { lazy }) {
        // Its daemon and keeper are gone.
        Err(error) if weir_userfs::mount::clear(&point)? => {
            tracing::debug!("{error}");
            return Ok(());
        }
        answer => answer?,
    };
    match answer {
        Answer::Done => Ok(()),
        Answer::Refused(reason) => {
            Err(Failure::Missing(format!("{reason}; '--lazy' unmounts what is in use")))
        }
        Answer::Status(_) => Err(Failure::Missing("the daemon answered another question".to_owned())),
    }
}

/// Who is accelerated, and who is not and why.
fn show_processes(status: &Status, to: &mut String) -> std::fmt::Result {
    let accelerated = &status.acceleration;
    if !accelerated.processes.is_empty() {
        let mut table = output::table(&["PROCESS", "PROGRAM", "STATE", "PLACES CHANGED", "LEFT"]);
        for process in &accelerated.processes {
            table.add_row([
                process.id.to_string(),
                process.name.clone(),
                process.state.clone(),
                process.sites_patched.to_string(),
                process.sites_left.to_string(),
            ]);
        }
        writeln!(to, "\n{}\n{table}", status.mount)?;
    }
    if let Some(figures) = status.segment.as_ref().filter(|figures| figures.calls > 0) {
        let (caught, calls) = (figures.caught, figures.calls);
        let mount = &status.mount;
        writeln!(
            to,
            "\n{mount}: {caught} of {calls} calls of programs run with --every-call came by a signal"
        )?;
    }
    if !accelerated.refused.is_empty() {
        let mut table = output::table(&["NOT ACCELERATED BECAUSE", "PROGRAMS"]);
        for (reason, programs) in &accelerated.refused {
            table.add_row([reason, &programs.to_string()]);
        }
        writeln!(to, "\n{}\n{table}", status.mount)?;
    }
    Ok(())
}

/// What a person reads.
fn show(all: &[Status]) {
    let mut text = String::new();
    // A string takes all that is written to it.
    let _ = describe(all, &mut text);
    crate::print::text(format_args!("{text}"));
}

/// What grows with the files that the kernel knows.
fn describe_held(held: &Held) -> String {
    let mut text = format!("{} files known to the kernel", held.files);
    if held.descriptors_max > 0 {
        let Held { descriptors, descriptors_max, reopened, .. } = held;
        let how = if held.by_handle { "by handle" } else { "by name" };
        text += &format!(
            ", {descriptors} of at most {descriptors_max} descriptors held, {reopened} opened again {how}"
        );
    }
    if held.lost > 0 {
        text += &format!(", {} not found again", held.lost);
    }
    text
}

fn describe(all: &[Status], to: &mut String) -> std::fmt::Result {
    let mut mounts = output::table(&["MOUNT", "BACKEND", "DAEMON", "ACCELERATION"]);
    for status in all {
        let by_kernel = status.acceleration.by_kernel.map(|opens| match status.acceleration.not_by_kernel {
            0 => format!("all programs: the kernel has the files itself, {opens} opens so far"),
            others => {
                format!("the kernel has the files itself, {opens} opens so far, but not of {others} others")
            }
        });
        let why_not = by_kernel.or_else(|| status.acceleration.why_not.clone());
        let acceleration = why_not.unwrap_or_else(|| {
            let now =
                status.acceleration.processes.iter().filter(|process| process.state == "accelerated").count();
            format!("{now} processes now, {} programs so far", status.acceleration.injected)
        });
        mounts.add_row([&status.mount, &status.backend, &status.pid.to_string(), &acceleration]);
    }
    writeln!(to, "{mounts}")?;
    for status in all {
        for note in &status.notes {
            writeln!(to, "{}: {note}", status.mount)?;
        }
        if let Some(held) = &status.held {
            writeln!(to, "{}: {}", status.mount, describe_held(held))?;
        }
    }
    for status in all {
        show_processes(status, to)?;
    }
    for status in all.iter().filter(|status| !status.operations.is_empty()) {
        writeln!(to)?;
        let mut operations = output::table(&["THROUGH THE KERNEL", "CALLS", "ERRORS", "MEAN US"]);
        for count in &status.operations {
            operations.add_row([
                count.operation.clone(),
                count.calls.to_string(),
                count.errors.to_string(),
                format!("{:.1}", count.mean_us),
            ]);
        }
        writeln!(to, "{}\n{operations}", status.mount)?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
