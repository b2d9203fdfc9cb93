//! Why a virtual machine's port carries nothing: what is told while nobody is there, and what when somebody is.

use super::super::driver::Driver;
use super::super::session::{Moved, Session, Told, awaits_guest};
use super::super::{Socket, ring::Addresses};
use super::meeting::{connect, frozen, next, runs, session, set_up, waits};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use vhost::vhost_user::VhostUserFrontend;

/// Which test of this program is to make the call that is refused; it is run by itself.
const REFUSED: &str = "WEIR_TEST_REFUSED";

/// The next reason with these words.
fn reason(told: &Receiver<Told>, words: &str) -> String {
    next(told, words, |one| match one {
        Told::Waits(reason) | Told::Failed(reason) if reason.contains(words) => Some(reason),
        _ => None,
    })
}

#[test]
fn a_machine_that_comes_and_goes_is_no_fault() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.sock");
    let (_session, told) = session(&path, true, 1);
    assert!(awaits_guest(&reason(&told, "none has come yet")));
    let driver = Driver::new(8);
    let mut frontend = connect(&path, 1);
    assert!(awaits_guest(&reason(&told, "has not started its device")));
    set_up(&mut frontend, &driver, 1);
    let guest = runs(&told);
    let ends = std::thread::spawn(move || frontend.set_vring_enable(1, false).map(|()| frontend));
    assert!(awaits_guest(&reason(&told, "setting up its device")));
    drop(guest);
    drop(ends.join().unwrap().unwrap());
    assert!(awaits_guest(&reason(&told, "it has gone")));
    // The other way round.
    let path = dir.path().join("b.sock");
    let (_session, told) = session(&path, false, 1);
    assert!(awaits_guest(&reason(&told, "nobody listens there")));
    // A socket that cannot be had is one.
    let path = dir.path().join("file");
    std::fs::write(&path, "mine").unwrap();
    let (_session, told) = session(&path, true, 1);
    assert!(!awaits_guest(&reason(&told, "no socket")));
}

#[test]
fn queues_that_cannot_run_are_told_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("q.sock");
    let (_session, told) = session(&path, true, 1);
    let driver = Driver::new(8);
    let mut frontend = connect(&path, 1);
    set_up(&mut frontend, &driver, 1);
    drop(runs(&told));
    let addresses = driver.addresses(0);
    let config = vhost::VringConfigData {
        queue_max_size: driver.size,
        queue_size: driver.size,
        flags: 0,
        // Aligned, and in no memory that was lent.
        desc_table_addr: 16,
        used_ring_addr: addresses.used,
        avail_ring_addr: addresses.available,
        log_addr: None,
    };
    vhost::VhostBackend::set_vring_addr(&frontend, 0, &config).unwrap();
    waits(&told, "setting up");
    let problem = reason(&told, "memory");
    assert!(!awaits_guest(&problem), "{problem}");
}

/// A session that another process had, whose queues this one cannot work with.
#[test]
fn a_session_that_is_taken_over_tells_why_its_queues_cannot_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.sock");
    let (old, told) = session(&path, true, 1);
    let driver = Driver::new(8);
    let mut frontend = connect(&path, 1);
    set_up(&mut frontend, &driver, 1);
    let guest = runs(&told);
    let mut moved: Moved = frozen(&old);
    moved.queues[0].addresses = Some(Addresses { descriptors: 7, ..driver.addresses(0) });
    let (sender, told) = channel();
    let socket = Socket { path, listens: true, pairs: 1 };
    let tell = move |what| drop(sender.send(what));
    let _new = Session::resume(socket, moved, Arc::new(tell)).unwrap();
    old.leave();
    drop((old, guest));
    let problem = reason(&told, "memory");
    assert!(!awaits_guest(&problem), "{problem}");
}

/// As under a unit whose filter lets no interrupts of guests through.
#[test]
fn a_machine_whose_interrupts_are_refused_is_told_why() {
    if std::env::var_os(REFUSED).is_none() {
        let own = concat!(module_path!(), "::a_machine_whose_interrupts_are_refused_is_told_why");
        let own = own.split_once("::").unwrap().1;
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", own, "--test-threads", "1", "--nocapture"])
            .env(REFUSED, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    refuse(libc::SYS_io_setup);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.sock");
    let monitor = UnixListener::bind(&path).unwrap();
    let (_session, told) = session(&path, false, 1);
    let driver = Driver::new(8);
    let mut frontend = vhost::vhost_user::Frontend::from_stream(monitor.accept().unwrap().0, 2);
    set_up(&mut frontend, &driver, 1);
    let problem = reason(&told, "asynchronous I/O");
    assert!(problem.contains("not permitted") && !awaits_guest(&problem), "{problem}");
}

/// Has a call refused with EPERM, for this thread and those that it starts.
fn refuse(call: libc::c_long) {
    let step = |code: u32, value: u32, otherwise: u8| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: otherwise,
        k: value,
    };
    let mut steps = [
        // The call's number is the first word of what is judged.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 1),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the filter lives while the kernel copies it.
    #[allow(unsafe_code)]
    let results = unsafe {
        (
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter),
        )
    };
    assert_eq!(results, (0, 0), "{}", std::io::Error::last_os_error());
}
