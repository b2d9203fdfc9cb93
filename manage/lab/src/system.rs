//! Programs run to their end, with a bound on time, and conditions polled with a bound.

use crate::{Error, Result, interrupt};
use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How often a condition is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How much of a failed program's error text is kept, in bytes.
const STDERR_KEPT_BYTES: usize = 600;
/// Bound on commands that only configure the kernel.
pub(crate) const CONFIGURE_BOUND: Duration = Duration::from_secs(20);

/// True if the caller may create namespaces.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// [`Error::NotRoot`] unless the caller is root.
pub fn require_root() -> Result<()> {
    if is_root() { Ok(()) } else { Err(Error::NotRoot) }
}

/// True if `program` is found in PATH (or in the sbin folders, which a person's PATH often lacks).
pub fn installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"])
        .any(|folder| std::path::Path::new(folder).join(program).is_file())
}

/// [`Error::Missing`] for the first program that is not installed.
pub fn require_installed(programs: &[&str]) -> Result<()> {
    match programs.iter().find(|program| !installed(program)) {
        Some(program) => Err(Error::Missing { program: (*program).to_string() }),
        None => Ok(()),
    }
}

/// The command line as a person would type it; of an argument of several lines only the first.
pub fn command_line(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        let argument = argument.to_string_lossy();
        let (first, more) = argument.split_once('\n').map_or((&*argument, ""), |(first, _)| (first, " …"));
        line.push(' ');
        line.push_str(first);
        line.push_str(more);
    }
    line
}

/// Runs `program args` to its end; its standard output, or [`Error::Command`].
pub fn run(program: &str, args: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args);
    run_ok(command, CONFIGURE_BOUND)
}

/// Runs a command to its end within `bound`; its standard output, or an error if it did not succeed.
pub fn run_ok(command: Command, bound: Duration) -> Result<String> {
    let line = command_line(&command);
    let output = run_output(command, bound)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Error::Command { command: line, status: output.status.to_string(), stderr: error_text(&output) })
}

/// The end of what a program wrote to its error stream, or to its output if that is empty.
pub fn error_text(output: &Output) -> String {
    let bytes = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
    let kept = &bytes[bytes.len().saturating_sub(STDERR_KEPT_BYTES)..];
    String::from_utf8_lossy(kept).trim().to_string()
}

/// Runs a command to its end within `bound`, whatever its exit status. On the bound, or when the person
/// interrupts, the program is killed. The program gets no standard input and its own process group, so that
/// ctrl-c reaches us alone.
pub fn run_output(mut command: Command, bound: Duration) -> Result<Output> {
    use std::os::unix::process::CommandExt;
    let line = command_line(&command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| spawn_error(&command, error))?;
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    let status = match wait_child(&mut child, &line, bound) {
        Ok(status) => status,
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
    };
    Ok(Output {
        status,
        stdout: stdout.join().unwrap_or_default(),
        stderr: stderr.join().unwrap_or_default(),
    })
}

/// Turns a failed start into [`Error::Missing`] where that is the reason.
pub fn spawn_error(command: &Command, error: std::io::Error) -> Error {
    let program = command.get_program().to_string_lossy().into_owned();
    if error.kind() == std::io::ErrorKind::NotFound {
        Error::Missing { program }
    } else {
        Error::io(format!("start {program}"), error)
    }
}

/// Reads a pipe to its end on its own thread, so that a full pipe cannot block the program.
fn drain(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // A read error ends the text early; the exit status still tells the truth.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

fn wait_child(child: &mut Child, line: &str, bound: Duration) -> Result<std::process::ExitStatus> {
    let begin = Instant::now();
    loop {
        if let Some(status) =
            child.try_wait().map_err(|error| Error::io(format!("wait for {line}"), error))?
        {
            return Ok(status);
        }
        interrupt::check()?;
        if begin.elapsed() > bound {
            return Err(timeout(format!("the end of `{line}`"), bound, String::new()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Polls `condition` until it is true, for at most `bound`; `what` names it in the error.
pub fn wait_for(what: &str, bound: Duration, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let begin = Instant::now();
    loop {
        if condition()? {
            return Ok(());
        }
        interrupt::check()?;
        if begin.elapsed() > bound {
            return Err(timeout(what.to_string(), bound, String::new()));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// An [`Error::Timeout`]; `hint` says where to look, empty for nothing.
pub fn timeout(what: String, bound: Duration, hint: String) -> Error {
    let hint = if hint.is_empty() { hint } else { format!(": {hint}") };
    Error::Timeout { what, after_ms: u64::try_from(bound.as_millis()).unwrap_or(u64::MAX), hint }
}
