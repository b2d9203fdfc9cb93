//! What runs: dynamic, static and Go programs; forks, threads, signals, exec after exec.

use super::{built, injector, intercept, run, text};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_intercept::announce;

const BASH: &[&str] = &["bash"];
const PYTHON: &[&str] = &["/usr/bin/python3"];
const BUSYBOX: &[&str] = &["/bin/busybox", "sh"];

#[test]
fn a_shell_and_what_it_starts_are_intercepted() {
    let Some(injector) = injector("a_shell") else { return };
    let script = "trap 'echo trapped' USR1; kill -USR1 $$; x=$(seq 1000 | sort -n | tail -1); echo $x; \
                  cat <(echo sub) | tr a-z A-Z; (exit 3); echo $?; /bin/echo end";
    assert_eq!(text(&run(&injector, BASH, script)), "trapped\n1000\nSUB\n3\nend\n");
    let figures = injector.figures();
    // bash, seq, sort, tail, cat, tr, echo
    assert_eq!(figures.injected, 7, "{figures:?}");
}

#[test]
fn a_static_program_is_intercepted() {
    let Some(injector) = injector("a_static_program") else { return };
    if !Path::new(BUSYBOX[0]).exists() {
        return println!("NOT RUN a_static_program: busybox-static is not installed");
    }
    let script = "for i in 1 2 3; do echo $i; done | /bin/busybox sort -r; /bin/busybox true && echo yes";
    assert_eq!(text(&run(&injector, BUSYBOX, script)), "3\n2\n1\nyes\n");
    assert_eq!(injector.figures().injected, 3);
}

#[test]
fn threads_signals_and_processes_of_python() {
    let Some(injector) = injector("python") else { return };
    let script = r"
import os, signal, subprocess, threading, time
seen = []
signal.signal(signal.SIGALRM, lambda *a: seen.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
counts = [0] * 8
def work(i):
    for _ in range(2000):
        with open('/proc/self/stat') as f:
            f.read()
        counts[i] += 1
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
[t.start() for t in threads]
for i in range(20):
    assert subprocess.run(['/bin/echo', str(i)], capture_output=True, text=True).stdout == f'{i}\n'
    pid = os.fork()
    if pid == 0:
        os._exit(i)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == i
[t.join() for t in threads]
signal.setitimer(signal.ITIMER_REAL, 0)
assert counts == [2000] * 8 and seen
try:
    os.execv('/no/such/program', ['x'])
except FileNotFoundError:
    os.execv('/bin/echo', ['echo', 'done'])
";
    assert_eq!(text(&run(&injector, PYTHON, script)), "done\n");
    assert_eq!(injector.figures().injected, 22);
}

#[test]
fn an_exec_that_fails_lets_go() {
    let Some(injector) = injector("an_exec_that_fails") else { return };
    // It is there, so the injector is asked, but may not be run.
    let script = r"
import os, signal, threading
tracer = lambda: [line.split()[1] for line in open('/proc/thread-self/status') if line.startswith('TracerPid')]
def attempts():
    for i in range(50):
        try:
            os.execv('/etc/passwd', ['passwd'])
        except PermissionError:
            assert tracer() == ['0']
            assert os.waitstatus_to_exitcode(os.system('exit 3')) == 3
attempts()
threads = [threading.Thread(target=attempts) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
try:
    os.waitpid(-1, 0x40000000)
except ChildProcessError:
    os.execv('/bin/echo', ['echo', 'done'])
";
    assert_eq!(text(&run(&injector, PYTHON, script)), "done\n");
    let figures = injector.figures();
    assert_eq!((figures.injected, figures.refused.len()), (2 + 5 * 50, 0), "{figures:?}");
}

#[test]
fn a_word_is_taken_back() {
    let Some(injector) = injector("a_word") else { return };
    let name = injector.name().to_owned();
    let mut command = Command::new("/bin/grep");
    // SAFETY: as `intercept`.
    unsafe {
        command.args(["TracerPid", "/proc/self/status"]).pre_exec(move || {
            drop(announce(&name).map_err(std::io::Error::other)?);
            Ok(())
        });
    }
    assert_eq!(text(&command.output().unwrap()), "TracerPid:\t0\n");
    let figures = injector.figures();
    assert_eq!((figures.injected, figures.refused.len()), (0, 0), "{figures:?}");
}

#[test]
fn what_does_not_fit_below_the_stack_has_memory_of_its_own() {
    let Some(injector) = injector("what_does_not_fit") else { return };
    for (said, stack) in [(200 << 10, None), (16, Some(32 << 10)), (1 << 20, Some(64 << 10))] {
        let name = injector.name().to_owned();
        let mut command = Command::new("/bin/echo");
        // SAFETY: as `intercept`.
        unsafe {
            command.arg("fine").pre_exec(move || {
                use std::io::{Read, Write};
                use std::os::linux::net::SocketAddrExt;
                use std::os::unix::net::{SocketAddr, UnixStream};
                if let Some(bytes) = stack {
                    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
                    libc::setrlimit(libc::RLIMIT_STACK, &raw const limit);
                }
                let mut line = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&name)?)?;
                let (mut question, told) = ([0; 24], vec![0u8; said]);
                question[..4].copy_from_slice(&libc::getpid().to_le_bytes());
                question[8..16].copy_from_slice(&(told.as_ptr() as u64).to_le_bytes());
                question[16..24].copy_from_slice(&(said as u64).to_le_bytes());
                line.write_all(&question)?;
                line.read_exact(&mut [0])?;
                // Until now the injector may read it.
                drop(told);
                Ok(())
            });
        }
        assert_eq!(text(&command.output().unwrap()), "fine\n", "{said} {stack:?}");
    }
    let figures = injector.figures();
    assert_eq!((figures.injected, figures.refused.len()), (3, 0), "{figures:?}");
}

#[test]
fn handlers_and_stacks_of_a_c_program() {
    let Some(injector) = injector("handlers") else { return };
    let folder = tempfile::tempdir().unwrap();
    for linking in ["-pie", "-static"] {
        let program = built(folder.path(), "signals", linking);
        let output = intercept(&mut Command::new(&program), &injector).output().unwrap();
        assert_eq!(text(&output), "fine\n", "{linking} {output:?}");
    }
}

/// A static program whose threads have small stacks; nothing where it cannot be built.
pub fn go_program(folder: &Path) -> Option<PathBuf> {
    let go = ["/usr/local/go/bin/go", "/usr/bin/go"].into_iter().find(|path| Path::new(path).exists())?;
    let program = folder.join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/many.go");
    let mut build = Command::new(go);
    build.args(["build", "-o"]).arg(&program).arg(&source).env("GOFLAGS", "-mod=mod").env("CGO_ENABLED", "0");
    build.env("GOCACHE", folder.join("cache")).env("HOME", folder);
    assert!(build.status().unwrap().success());
    Some(program)
}

#[test]
fn a_go_program_is_intercepted() {
    let Some(injector) = injector("a_go_program") else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = go_program(folder.path()) else {
        return println!("NOT RUN a_go_program: there is no Go");
    };
    let output = intercept(&mut Command::new(&program), &injector).output().unwrap();
    assert_eq!(text(&output), "4096\nfrom echo\n");
    assert_eq!(injector.figures().injected, 2);
}

#[test]
fn libraries_that_come_later_and_faults_work() {
    let Some(injector) = injector("libraries") else { return };
    let script = r"
import ctypes, sqlite3, json, ssl, os
db = sqlite3.connect(':memory:')
assert db.execute('select 1 + 1').fetchone() == (2,)
pid = os.fork()
if pid == 0:
    ctypes.string_at(8)
assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == 11
print('fine')
";
    assert_eq!(text(&run(&injector, PYTHON, script)), "fine\n");
}

#[test]
fn what_was_found_in_a_file_serves_the_next_process() {
    let Some(injector) = injector("known_places") else { return };
    let until = |what: &str, holds: &mut dyn FnMut() -> bool| {
        let begun = std::time::Instant::now();
        while !holds() {
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{what}: {:?}", injector.figures());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    let script = "trap 'echo trapped' USR1; kill -USR1 $$; (exit 3); echo $?";
    // The shell, its loader and its libraries are shown until all are known.
    until("nothing was found", &mut || {
        assert_eq!(text(&run(&injector, BASH, script)), "trapped\n3\n");
        injector.figures().known >= 3
    });
    let mut shown = u64::MAX;
    until("it is shown again and again", &mut || {
        let before = std::mem::replace(&mut shown, injector.figures().shown);
        assert_eq!(text(&run(&injector, BASH, script)), "trapped\n3\n");
        before == shown
    });
    // What is known is mapped: nothing of libc or of the loader is this process's own.
    let maps = text(&run(&injector, BASH, "cat /proc/$$/maps"));
    for file in ["libc.so", "ld-linux-x86-64.so"] {
        let images: Vec<&str> =
            maps.lines().filter(|line| line.contains(&format!("/memfd:weir:{file}"))).collect();
        assert_eq!(images.len(), 2, "trampolines and code of {file}: {maps}");
        assert!(images.iter().all(|line| line.contains(" r-xp ")), "{images:?}");
    }
    // A file that has just been written may change once more unseen: it is not believed yet, and runs all the same.
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("echo");
    std::fs::copy("/bin/echo", &copy).unwrap();
    let (known, shown) = (injector.figures().known, injector.figures().shown);
    assert_eq!(text(&intercept(Command::new(&copy).arg("new"), &injector).output().unwrap()), "new\n");
    until("the new file was not shown", &mut || injector.figures().shown > shown);
    assert!(injector.figures().known >= known);
}
