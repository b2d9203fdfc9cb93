//! What is left alone, and runs as ever.

use super::{injector, intercept, run, text};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

#[test]
fn set_user_id_programs_keep_their_rights() {
    let Some(injector) = injector("set_user_id") else { return };
    if !rustix::process::geteuid().is_root() {
        return println!("NOT RUN set_user_id: needs root to make such a program");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("id");
    std::fs::copy("/usr/bin/id", &program).unwrap();
    std::os::unix::fs::chown(&program, Some(1234), None).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let script = format!("{} -u", program.display());
    assert_eq!(text(&run(&injector, &["bash"], &script)), "1234\n");
    assert_eq!(injector.figures().injected, 1, "the shell only");
    // Asked for directly, the injector looks too.
    let output = intercept(Command::new(&program).arg("-u"), &injector).output().unwrap();
    assert_eq!(text(&output), "1234\n");
    let figures = injector.figures();
    assert_eq!(figures.injected, 1);
    assert_eq!(figures.refused.get("it is set-user-id or set-group-id"), Some(&1), "{figures:?}");
}

#[test]
fn traced_programs_stay_their_tracers() {
    let Some(injector) = injector("traced") else { return };
    if Command::new("strace").arg("-V").output().is_err() {
        return println!("NOT RUN traced: strace is not installed");
    }
    let output = run(&injector, &["bash"], "strace -f -o /dev/null bash -c '/bin/echo one; /bin/echo two'");
    assert_eq!(text(&output), "one\ntwo\n");
    let figures = injector.figures();
    assert!(figures.refused.keys().any(|reason| reason.contains("traces it")), "{figures:?}");
}

#[test]
fn without_an_injector_programs_run() {
    let Some(injector) = injector("without_an_injector") else { return };
    let mut command = Command::new("bash");
    command.args(["-c", "read wait; /bin/echo alone"]).stdin(std::process::Stdio::piped());
    let mut child = intercept(&mut command, &injector).stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(injector);
    drop(child.stdin.take());
    assert_eq!(text(&child.wait_with_output().unwrap()), "alone\n");
}

#[test]
fn programs_under_a_filter_are_left_alone() {
    let Some(injector) = injector("under_a_filter") else { return };
    // A filter that allows everything: what it would say of our calls is not known beforehand.
    let script = r"
import ctypes, os, struct
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
allow = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))
assert libc.prctl(22, 2, struct.pack('HxxxxxxP', 1, ctypes.addressof(allow)), 0, 0) == 0
os.execv('/bin/echo', ['echo', 'filtered'])
";
    assert_eq!(text(&run(&injector, &["/usr/bin/python3"], script)), "filtered\n");
    let figures = injector.figures();
    assert_eq!(
        (figures.injected, figures.refused.get("a seccomp filter is on it")),
        (1, Some(&1)),
        "{figures:?}"
    );
}

#[test]
fn a_thread_of_another_process_is_not_seized() {
    use std::io::{Read, Write};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};
    let Some(injector) = injector("another_process") else { return };
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    let address = SocketAddr::from_abstract_name(injector.name()).unwrap();
    let mut line = UnixStream::connect_addr(&address).unwrap();
    let mut question = [0; 24];
    question[..4].copy_from_slice(&(other.id() as i32).to_le_bytes());
    line.write_all(&question).unwrap();
    let mut answer = [0; 1];
    assert_eq!((line.read(&mut answer).unwrap(), answer), (1, *b"n"));
    let status = std::fs::read_to_string(format!("/proc/{}/status", other.id())).unwrap();
    assert!(status.contains("TracerPid:\t0\n"), "{status}");
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(injector.figures().refused.get("it asks for a thread of another process"), Some(&1));
}

#[test]
fn another_user_is_left_alone_and_holds_nobody_up() {
    let Some(injector) = injector("another_user") else { return };
    if !rustix::process::geteuid().is_root() {
        return println!("NOT RUN another_user: needs root to be another user");
    }
    let mut command = Command::new("/bin/echo");
    // Whoever starts it hears it, and may start it all the same.
    assert!(intercept(command.arg("alone").uid(65_534).gid(65_534), &injector).output().is_err());
    let figures = injector.figures();
    let reason = "it is asked by another user";
    assert_eq!((figures.injected, figures.refused.get(reason)), (0, Some(&1)), "{figures:?}");
    // More than may begin at once.
    let script = format!(
        "import socket, sys\nall = []\nfor i in range(100):\n    s = socket.socket(socket.AF_UNIX)\n    s.connect('\\0{}')\n    all.append(s)\n\
         print('held', flush=True)\nsys.stdin.read()",
        injector.name()
    );
    let mut holder = Command::new("/usr/bin/python3");
    holder.args(["-c", &script]).uid(65_534).gid(65_534).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = holder.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "held\n");
    let output = intercept(Command::new("/bin/echo").arg("begun"), &injector).output().unwrap();
    assert_eq!(text(&output), "begun\n");
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(injector.figures().injected, 1, "{:?}", injector.figures());
}

#[test]
fn programs_of_another_pid_namespace_are_left_alone() {
    let Some(injector) = injector("pid_namespace") else { return };
    if !rustix::process::geteuid().is_root() {
        return println!("NOT RUN pid_namespace: needs root to make one");
    }
    let script = "unshare --pid --fork /bin/echo there; unshare --pid --fork bash -c '/bin/echo further'";
    assert_eq!(text(&run(&injector, &["bash"], script)), "there\nfurther\n");
    let figures = injector.figures();
    let reason = "it is in another PID namespace than the daemon";
    // The shell, and unshare twice; what that began does not ask again.
    assert_eq!((figures.injected, figures.refused.get(reason)), (3, Some(&2)), "{figures:?}");
}
