//! Programs run with and without interception must do the same.
#![allow(unsafe_code)]

mod every;
mod programs;
mod refused;
mod storm;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use weir_intercept::{Blob, Calls, Injector, announce_for};

/// An injector of this test's own, whose blob passes every call on; nothing when this machine cannot.
pub fn injector(test: &str) -> Option<Injector> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    if let Err(error) = weir_intercept::possible() {
        println!("NOT RUN {test}: {error}");
        return None;
    }
    let name = format!("weir-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    Some(Injector::start(Blob::pass_through().expect("a blob"), &name, &[]).expect("an injector"))
}

/// Makes `command` ask `injector` before it begins.
pub fn intercept<'a>(command: &'a mut Command, injector: &Injector) -> &'a mut Command {
    intercept_for(command, injector, Calls::Known)
}

/// The same, and which calls are seen.
pub fn intercept_for<'a>(command: &'a mut Command, injector: &Injector, calls: Calls) -> &'a mut Command {
    let name = injector.name().to_owned();
    // SAFETY: asks by a socket between fork and exec; the tests' other threads hold no lock that this needs but the
    // allocator's, which fork leaves usable.
    unsafe {
        command.pre_exec(move || {
            let announced = announce_for(&name, calls).map_err(std::io::Error::other)?;
            std::mem::forget(announced);
            Ok(())
        })
    }
}

/// A program of `tests/programs`.
pub fn built(folder: &Path, name: &str, linking: &str) -> PathBuf {
    let program = folder.join(format!("{name}{linking}"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    let status =
        Command::new("cc").args(["-O1", "-pthread", linking, "-o"]).arg(&program).arg(&source).status();
    assert!(status.expect("cc").success());
    program
}

/// Runs `script` by the shell `shell`, intercepted.
pub fn run(injector: &Injector, shell: &[&str], script: &str) -> Output {
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).arg("-c").arg(script);
    intercept(&mut command, injector).output().expect("it runs")
}

/// Text of an output that must be a success.
pub fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
