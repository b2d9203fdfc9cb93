//! Daemons that are killed under load: programs notice nothing but a moment of waiting.
#![allow(unsafe_code)]

use super::accelerated::{PYTHON, Partner};
use super::cannot_mount;
use super::mounts::until;
use super::peers::Peer;
use rustix::process::{Resource, Rlimit};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use weir_userfs::control::{self, Answer, Question, Status};
use weir_userfs::daemon::Task;
use weir_userfs::keeper;
use weir_userfs::mount::Options;

/// Where the process of [`a_keeper_to_be_started`] mounts, and what; without it, that test is none.
const FOLDER: &str = "WEIR_TEST_KEEPER_FOLDER";
const BACKEND: &str = "WEIR_TEST_KEEPER_BACKEND";
const CACHED: &str = "WEIR_TEST_KEEPER_CACHED";
/// Descriptors that a daemon begins with.
const FEW_DESCRIPTORS: u64 = 256;
/// Daemons that are killed in one test: fewer than a keeper gives up at.
const DEATHS: usize = 5;

#[test]
fn a_keeper_to_be_started() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let options = Options {
        others: rustix::process::geteuid().is_root(),
        cached: std::env::var_os(CACHED).is_some(),
        kept: true,
        ..Options::default()
    };
    let backend = std::env::var(BACKEND).unwrap();
    let task = Task { backend, point: folder.join("mount"), state: folder.join("state"), options };
    if let Err(error) = keeper::serve(task, &AtomicBool::new(false)) {
        eprintln!("the keeper says: {error}");
        std::process::exit(1);
    }
}

/// A mount with a keeper.
pub struct Kept {
    keeper: Child,
    folder: tempfile::TempDir,
    user: Option<u32>,
}

impl Kept {
    pub fn start(
        test: &str,
        backend: impl FnOnce(&Path) -> String,
        environment: &[(&str, &str)],
    ) -> Option<Kept> {
        if let Some(reason) = cannot_mount() {
            println!("NOT RUN {test}: {reason}");
            return None;
        }
        Some(Kept::of(None, backend, environment))
    }

    /// Memory, mounted by a user without rights.
    pub fn of_user(test: &str, user: u32) -> Option<Kept> {
        let helped = Path::new("/usr/bin/fusermount3").exists();
        if let Some(reason) = cannot_mount().or((!helped).then_some("there is no fusermount3")) {
            println!("NOT RUN {test}: {reason}");
            return None;
        }
        Some(Kept::of(Some(user), |_| "mem:512M".to_owned(), &[]))
    }

    /// A folder, mounted by root or another user, whose daemon may have no more than so many descriptors.
    pub fn of_few(test: &str, user: Option<u32>, cached: bool, descriptors: u64) -> Option<Kept> {
        let helped = user.is_none() || Path::new("/usr/bin/fusermount3").exists();
        if let Some(reason) = cannot_mount().or((!helped).then_some("there is no fusermount3")) {
            println!("NOT RUN {test}: {reason}");
            return None;
        }
        let dir = |folder: &Path| format!("dir:{}", folder.join("under").display());
        let environment: &[(&str, &str)] = if cached { &[(CACHED, "1")] } else { &[] };
        Some(Kept::with(user, dir, environment, Some(descriptors)))
    }

    fn of(user: Option<u32>, backend: impl FnOnce(&Path) -> String, environment: &[(&str, &str)]) -> Kept {
        Kept::with(user, backend, environment, None)
    }

    fn with(
        user: Option<u32>,
        backend: impl FnOnce(&Path) -> String,
        environment: &[(&str, &str)],
        most: Option<u64>,
    ) -> Kept {
        let folder = tempfile::tempdir().unwrap();
        for part in ["mount", "under", "."] {
            let part = folder.path().join(part);
            fs::create_dir_all(&part).unwrap();
            std::os::unix::fs::chown(&part, user, user).unwrap();
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        if let Some(user) = user {
            command.uid(user).gid(user).current_dir("/");
        }
        // Fewer descriptors than a shell gives: a daemon takes what it may have.
        let few = move || {
            let limit = rustix::process::getrlimit(Resource::Nofile);
            let limit = Rlimit { current: Some(FEW_DESCRIPTORS), maximum: most.or(limit.maximum) };
            Ok(rustix::process::setrlimit(Resource::Nofile, limit)?)
        };
        // SAFETY: two system calls between fork and exec.
        unsafe { command.pre_exec(few) };
        command.args(["--exact", "suite::crashes::a_keeper_to_be_started", "--nocapture"]);
        command.env(FOLDER, folder.path()).env(BACKEND, backend(folder.path()));
        command.envs(environment.iter().copied()).stdout(Stdio::null()).stderr(Stdio::piped());
        let kept = Kept { keeper: command.spawn().unwrap(), folder, user };
        until("the mount", || kept.status().is_some());
        kept
    }

    fn memory(test: &str) -> Option<Kept> {
        Kept::start(test, |_| "mem:256M".to_owned(), &[])
    }

    pub fn root(&self) -> PathBuf {
        fs::canonicalize(self.folder.path()).unwrap().join("mount")
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    pub fn status(&self) -> Option<Status> {
        control::all(&self.state()).into_iter().find(|status| status.is_by(self.keeper.id()))
    }

    pub fn daemon(&self) -> i32 {
        self.status().expect("it answers").pid as i32
    }

    fn kill(&self, process: i32) {
        let process = rustix::process::Pid::from_raw(process).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    }

    /// Kills the daemon, and waits for the next one.
    pub fn next_daemon(&self) {
        let before = self.daemon();
        self.kill(before);
        until("another daemon", || self.status().is_some_and(|status| status.pid as i32 != before));
    }

    /// Accelerated, as the mount's user.
    pub fn command(&self, program: &str) -> Command {
        let mut name = None;
        // One may be taking another's place.
        until("a daemon with an injector", || {
            name = self.status().and_then(|status| status.acceleration.injector);
            name.is_some()
        });
        let name = name.unwrap();
        let mut command = Command::new(program);
        // SAFETY: a question by a socket between fork and exec; fork leaves the allocator usable.
        unsafe {
            command.pre_exec(move || {
                // Who was root a moment ago may be traced by nobody, until it begins a program.
                libc::prctl(libc::PR_SET_DUMPABLE, 1);
                // Where there is no daemon at the moment the program goes on as ever, as by `weir fs run`. (An error that is no
                // number of the system's would be told as EINVAL of exec.)
                std::mem::forget(weir_intercept::announce(&name));
                Ok(())
            });
        }
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command.current_dir(self.root());
        command
    }

    pub fn end(mut self) {
        // A child of what was waited for may still be ending there.
        until("nobody is in the mount any more", || {
            let question = Question::Unmount { lazy: false };
            control::ask(&self.state(), &self.root(), &question).unwrap() == Answer::Done
        });
        assert!(self.keeper.wait().unwrap().success(), "the keeper ends well");
        assert!(control::all(&self.state()).is_empty());
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // What is gone already is what is wanted.
        let _ = rustix::mount::unmount(self.root(), rustix::mount::UnmountFlags::DETACH);
        let daemon = self.status().map(|status| status.pid as i32);
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
        if let Some(daemon) = daemon.and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(daemon, rustix::process::Signal::KILL);
        }
    }
}

/// Makes, changes, renames and removes files until told; what is there then.
fn work(folder: &Path, links: bool, end: &AtomicBool, rounds: &AtomicUsize) -> BTreeMap<String, Vec<u8>> {
    let mut there = BTreeMap::new();
    fs::create_dir(folder).unwrap();
    for round in 0.. {
        if end.load(Ordering::Relaxed) {
            break;
        }
        let path = |what: &str| folder.join(format!("{what}{round}"));
        let mut file = File::create_new(path("new")).unwrap();
        file.write_all(format!("round {round}\n").as_bytes()).unwrap();
        file.sync_all().unwrap();
        drop(file);
        let mut log = File::options().append(true).create(true).open(folder.join("log")).unwrap();
        log.write_all(format!("{round}\n").as_bytes()).unwrap();
        fs::rename(path("new"), path("moved")).unwrap();
        fs::create_dir(path("folder")).unwrap();
        fs::rename(path("moved"), path("folder").join("inside")).unwrap();
        if links {
            symlink("folder", path("link")).unwrap();
            assert_eq!(fs::read_link(path("link")).unwrap(), Path::new("folder"));
            fs::remove_file(path("link")).unwrap();
            fs::hard_link(path("folder").join("inside"), path("second")).unwrap();
            fs::remove_file(path("folder").join("inside")).unwrap();
        } else {
            fs::rename(path("folder").join("inside"), path("second")).unwrap();
        }
        fs::remove_dir(path("folder")).unwrap();
        if round % 3 == 0 {
            fs::remove_file(path("second")).unwrap();
        } else {
            there.insert(format!("second{round}"), format!("round {round}\n").into_bytes());
        }
        there.entry("log".to_owned()).or_default().extend(format!("{round}\n").as_bytes());
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    there
}

/// How names begin of files that were removed while they were open.
const HIDDEN: &str = ".weir-removed-";

/// Kills daemons while others work; then all that they were told is true.
fn survives(kept: &Kept, links: bool) {
    let (end, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    let root = kept.root();
    std::thread::scope(|scope| {
        let begun: Vec<_> = (0..3)
            .map(|number| {
                let folder = root.join(format!("thread{number}"));
                let (end, rounds) = (&end, &rounds);
                (folder.clone(), scope.spawn(move || work(&folder, links, end, rounds)))
            })
            .collect();
        for _ in 0..DEATHS {
            let before = rounds.load(Ordering::Relaxed);
            until("some work", || rounds.load(Ordering::Relaxed) > before + 20);
            kept.next_daemon();
        }
        let before = rounds.load(Ordering::Relaxed);
        until("some work after the last death", || rounds.load(Ordering::Relaxed) > before + 20);
        end.store(true, Ordering::Relaxed);
        for (folder, worker) in begun {
            let wanted = worker.join().expect("no call failed");
            let seen: BTreeMap<String, Vec<u8>> = fs::read_dir(&folder)
                .unwrap()
                .map(|entry| entry.unwrap())
                .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
                // What a daemon that died had only hidden, as it was still open, stays so (docs/operate/userfs.md).
                .filter(|(name, _)| !name.starts_with(HIDDEN))
                .collect();
            assert_eq!(seen.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
            for (name, bytes) in &wanted {
                assert_eq!(seen.get(name), Some(bytes), "{name} in {}", folder.display());
            }
        }
    });
    let status = kept.status().unwrap();
    assert_eq!(status.deaths, DEATHS as u64);
    assert!(
        status.notes.iter().any(|note| note.contains("others took their place: 5")),
        "{:?}",
        status.notes
    );
}

/// What is counted goes on: operations, and opens that the kernel serves by itself.
#[test]
fn counts_survive_their_daemons() {
    let dir = |folder: &Path| format!("dir:{}", folder.join("under").display());
    let Some(kept) = Kept::start("counts_survive", dir, &[]) else { return };
    let calls = |operation: &str| {
        let counts = kept.status().unwrap().operations;
        counts.iter().find(|count| count.operation == operation).map_or(0, |count| count.calls)
    };
    for round in 1..=3_u64 {
        for number in 0..20 {
            fs::create_dir(kept.root().join(format!("{round}-{number}"))).unwrap();
            let path = kept.root().join(format!("{round}-{number}-file"));
            fs::write(&path, "x").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"x");
        }
        assert_eq!(calls("make_directory"), 20 * round);
        if let Some(opens) = kept.status().unwrap().acceleration.by_kernel {
            assert!(opens >= 20 * round, "{opens} of {}", 20 * round);
        }
        kept.next_daemon();
        assert_eq!(calls("make_directory"), 20 * round, "another daemon counts on");
    }
    kept.end();
}

#[test]
fn memory_survives_its_daemons() {
    let Some(kept) = Kept::memory("memory_survives") else { return };
    survives(&kept, true);
    kept.end();
}

#[test]
fn folders_survive_their_daemons() {
    let dir = |folder: &Path| format!("dir:{}", folder.join("under").display());
    for environment in [&[][..], &[(CACHED, "1")]] {
        let Some(kept) = Kept::start("folders_survive", dir, environment) else { return };
        println!("{environment:?}");
        survives(&kept, true);
        kept.end();
    }
}

#[test]
fn a_folder_has_more_files_than_a_shell_gives_descriptors() {
    let dir = |folder: &Path| format!("dir:{}", folder.join("under").display());
    let Some(kept) = Kept::start("a_folder_has_more_files", dir, &[]) else { return };
    let files = 3 * FEW_DESCRIPTORS;
    for number in 0..files {
        fs::write(kept.root().join(number.to_string()), number.to_string()).unwrap();
    }
    for number in 0..files {
        let path = kept.root().join(number.to_string());
        assert_eq!(fs::read_to_string(path).unwrap(), number.to_string());
    }
    kept.end();
}

#[test]
fn an_sftp_servers_files_survive_the_daemon() {
    let peer = match Peer::sftp() {
        Ok(peer) => peer,
        Err(reason) => return println!("NOT RUN an_sftp_servers_files_survive: {reason}"),
    };
    let (text, ssh) = peer.way();
    let Some(kept) = Kept::start("sftp_survives", |_| text, &[("WEIR_FS_SSH", &ssh)]) else { return };
    survives(&kept, false);
    kept.end();
}

#[test]
fn what_is_open_stays_open() {
    let Some(kept) = Kept::memory("what_is_open") else { return };
    let root = kept.root();
    let mut file = File::options().read(true).write(true).create_new(true).open(root.join("f")).unwrap();
    file.write_all(b"0123456789").unwrap();
    file.seek(std::io::SeekFrom::Start(4)).unwrap();
    let gone = File::options().read(true).write(true).create_new(true).open(root.join("gone")).unwrap();
    gone.write_all_at(&[7; 100_000], 0).unwrap();
    fs::remove_file(root.join("gone")).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    rustix::fs::fsetxattr(&file, "user.kept", b"yes", rustix::fs::XattrFlags::empty()).unwrap();
    let mut names = fs::read_dir(&root).unwrap();
    for i in 0..500 {
        fs::write(root.join(format!("many{i}")), "x").unwrap();
    }
    let mut listed = fs::read_dir(&root).unwrap();
    let before: Vec<_> = listed.by_ref().take(3).map(|entry| entry.unwrap().file_name()).collect();
    let inode = file.metadata().unwrap().ino();
    // A map whose page is not there yet, and one that is changed.
    let mut plain = Partner::by(Command::new(PYTHON).current_dir(&root));
    plain.ask("!global m; f = open('f', 'r+b'); m = mmap.mmap(f.fileno(), 10); m[0:1] = b'M'");
    kept.next_daemon();
    assert_eq!(plain.ask("m[0:3]"), "b'M12'");
    plain.ask("!m[1:2] = b'N'; m.flush()");
    let mut rest = Vec::new();
    file.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"456789");
    assert_eq!(fs::read(root.join("f")).unwrap(), b"MN23456789");
    assert_eq!(file.metadata().unwrap().ino(), inode);
    let mut value = [0; 8];
    assert_eq!(rustix::fs::fgetxattr(&file, "user.kept", &mut value).unwrap(), 3);
    let other = File::open(root.join("f")).unwrap();
    let locked = rustix::fs::flock(&other, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    assert_eq!(locked, Err(rustix::io::Errno::WOULDBLOCK));
    let mut bytes = vec![0; 100_000];
    gone.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));
    gone.write_all_at(b"still", 99_999).unwrap();
    // A listing goes on where it was: each name once.
    let mut all: Vec<_> = before.into_iter().chain(listed.map(|entry| entry.unwrap().file_name())).collect();
    all.sort();
    let count = all.len();
    all.dedup();
    assert_eq!((all.len(), count), (501, 501));
    assert!(names.next().is_some());
    drop((file, gone, other, names, plain));
    kept.end();
}

#[test]
fn accelerated_programs_go_on_without_a_daemon() {
    if let Err(error) = weir_intercept::possible() {
        return println!("NOT RUN accelerated_programs_go_on: {error}");
    }
    let Some(kept) = Kept::memory("accelerated_programs_go_on") else { return };
    let root = kept.root();
    let mut partner = Partner::by(kept.command(PYTHON).current_dir(&root));
    partner.ask("os.close(os.open('warm', os.O_CREAT | os.O_WRONLY))");
    let open = partner.number("os.open('f', os.O_CREAT | os.O_RDWR)");
    assert_eq!(partner.number(&format!("os.write({open}, b'before')")), 6);
    for death in 0..3 {
        let daemon = kept.daemon();
        // Dead, and nobody has taken its place: its keeper stands still.
        let keeper = rustix::process::Pid::from_raw(kept.keeper.id() as i32).unwrap();
        rustix::process::kill_process(keeper, rustix::process::Signal::STOP).unwrap();
        kept.kill(daemon);
        std::thread::sleep(Duration::from_millis(100));
        // Not at the position, which is the kernel's once the program has started another.
        assert_eq!(partner.number(&format!("os.pwrite({open}, b'+{death}', {})", 6 + 2 * death)), 2);
        assert_eq!(partner.ask(&format!("os.pread({open}, 6, 0)")), "b'before'");
        rustix::process::kill_process(keeper, rustix::process::Signal::CONT).unwrap();
        // A folder is looked up by the kernel, which may have to ask.
        let made = format!("os.open('made{death}', os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640)");
        let made = partner.number(&made);
        assert_eq!(partner.number(&format!("os.write({made}, b'made')")), 4);
        assert_eq!(partner.ask(&format!("os.close({made})")), "None");
        until("another daemon", || kept.status().is_some_and(|status| status.pid as i32 != daemon));
        assert_eq!(fs::read(root.join(format!("made{death}"))).unwrap(), b"made");
        assert_eq!(fs::metadata(root.join(format!("made{death}"))).unwrap().mode(), 0o100_640);
        assert_eq!(fs::read(root.join("f")).unwrap(), {
            let mut all = b"before".to_vec();
            (0..=death).for_each(|n| all.extend(format!("+{n}").as_bytes()));
            all
        });
        // The kernel has its pages now, of which it must be told.
        assert_eq!(partner.number(&format!("os.pwrite({open}, b'B', 0)")), 1);
        assert_eq!(fs::read(root.join("f")).unwrap()[0], b'B');
        assert_eq!(partner.number(&format!("os.pwrite({open}, b'b', 0)")), 1);
        // What it starts is accelerated too.
        let script = "import os; f = os.open('f', os.O_RDONLY); print(os.read(f, 6)); print(open('/proc/self/maps').read().count('weir'))";
        let child = format!(
            "__import__('subprocess').run(['{PYTHON}', '-c', \"{script}\"], capture_output=True).stdout"
        );
        let said = partner.ask(&child);
        assert!(said.starts_with("b\"b'before'") && !said.contains("\\n0\\n"), "{said}");
    }
    let status = kept.status().unwrap();
    assert!(status.acceleration.processes.iter().any(|process| process.state == "accelerated"), "{status:?}");
    assert!(status.acceleration.injected > 0, "{status:?}");
    drop(partner);
    kept.end();
}

#[test]
fn accelerated_programs_that_make_files_lose_none() {
    if let Err(error) = weir_intercept::possible() {
        return println!("NOT RUN accelerated_programs_that_make_files: {error}");
    }
    let Some(kept) = Kept::memory("accelerated_programs_that_make_files") else { return };
    let script = "import os, sys\nn = 0\nwhile not os.path.exists('end'):\n    name = sys.argv[1] + '%d' % n\n    f = os.open(name, \
                  os.O_CREAT | os.O_EXCL | os.O_WRONLY)\n    assert os.write(f, name.encode()) == len(name)\n    os.close(f)\n    if n % 5 \
                  == 0: os.rename(name, 'r' + name)\n    if n % 7 == 6: os.unlink(name) if n % 5 else os.unlink('r' + name)\n    old = n - 500\n    \
                  if old >= 0 and old % 7 != 6: os.unlink(('' if old % 5 else 'r') + sys.argv[1] + '%d' % old)\n    n += 1\nprint(n)";
    // What is older than so many is removed, so that memory does not run out however fast they are.
    const KEPT: usize = 500;
    let begun: Vec<_> = ["a", "b"]
        .map(|own| {
            let child = kept.command(PYTHON).args(["-c", script, own]).stdout(Stdio::piped()).spawn();
            (own, child.unwrap())
        })
        .into();
    for _ in 0..DEATHS {
        std::thread::sleep(Duration::from_millis(200));
        kept.next_daemon();
    }
    fs::write(kept.root().join("end"), "").unwrap();
    for (own, child) in begun {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let made: usize = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        assert!(made > 100, "{made} files");
        for number in 0..made {
            let name = format!("{own}{number}");
            let path = kept.root().join(if number % 5 == 0 { format!("r{name}") } else { name.clone() });
            if number % 7 == 6 || number + KEPT < made {
                assert!(!path.exists(), "{} was removed", path.display());
            } else {
                assert_eq!(fs::read_to_string(&path).unwrap(), name, "{}", path.display());
            }
        }
    }
    let left = fs::read_dir(kept.root()).unwrap().count();
    assert_eq!(
        left,
        fs::read_dir(kept.root())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect::<std::collections::BTreeSet<_>>()
            .len()
    );
    kept.end();
}

/// A dynamic program of the mount, and a static one, both begun again and again by an accelerated shell and by us.
#[test]
fn programs_begin_while_daemons_die() {
    if let Err(error) = weir_intercept::possible() {
        return println!("NOT RUN programs_begin_while_daemons_die: {error}");
    }
    let Some(kept) = Kept::memory("programs_begin_while_daemons_die") else { return };
    let root = kept.root();
    fs::copy("/bin/echo", root.join("echo")).unwrap();
    let programs: Vec<&str> = ["./echo", "/bin/busybox echo"]
        .into_iter()
        .filter(|line| line.starts_with('.') || Path::new("/bin/busybox").exists())
        .collect();
    let script = format!(
        "n=0; while [ ! -e end ]; do for program in '{}'; do n=$((n + 1)); said=$($program $n) || {{ echo $program ended by $?; exit 1; }}; \
         [ \"$said\" = $n ] || {{ echo \"$program said $said\"; exit 1; }}; done; done; echo $n",
        programs.join("' '")
    );
    let shell = kept.command("bash").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut own = kept.command("./echo");
    let (begun, end) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                let output = own.output().unwrap();
                assert!(output.status.success() && output.stdout == b"\n", "{output:?}");
                begun.fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..DEATHS {
            let before = begun.load(Ordering::Relaxed);
            until("some programs", || begun.load(Ordering::Relaxed) > before + 20);
            kept.next_daemon();
        }
        end.store(true, Ordering::Relaxed);
    });
    fs::write(root.join("end"), "").unwrap();
    let output = shell.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said: usize = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    assert!(said > 20 && begun.load(Ordering::Relaxed) > 20, "{said} programs of the shell");
    assert!(kept.status().unwrap().acceleration.injected > 0, "the last daemon accelerated some");
    kept.end();
}

#[test]
fn an_archive_is_read_on() {
    let made = |folder: &Path| {
        let from = folder.join("under");
        for i in 0..50 {
            fs::write(from.join(format!("f{i}")), format!("{i}").repeat(1000)).unwrap();
        }
        let archive = folder.join("a.tar.gz");
        let packed = Command::new("tar").arg("czf").arg(&archive).arg("-C").arg(&from).arg(".").status();
        assert!(packed.unwrap().success());
        format!("archive:{}", archive.display())
    };
    let Some(kept) = Kept::start("an_archive_is_read_on", made, &[]) else { return };
    let open = File::open(kept.root().join("f7")).unwrap();
    for _ in 0..2 {
        kept.next_daemon();
        let mut bytes = vec![0; 1000];
        open.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, "7".repeat(1000).into_bytes());
        for i in 0..50 {
            assert_eq!(
                fs::read_to_string(kept.root().join(format!("f{i}"))).unwrap(),
                format!("{i}").repeat(1000)
            );
        }
    }
    drop(open);
    kept.end();
}

#[test]
fn a_daemon_that_dies_and_dies_is_given_up() {
    let Some(mut kept) = Kept::memory("dies_and_dies") else { return };
    fs::write(kept.root().join("f"), "x").unwrap();
    until("the keeper to give up", || {
        if let Some(status) = kept.status() {
            kept.kill(status.pid as i32);
        }
        kept.keeper.try_wait().unwrap().is_some()
    });
    let mut said = String::new();
    kept.keeper.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("died 9 times, and its mount is given up: it was ended by signal 9"), "{said}");
    let error = fs::read(kept.root().join("f")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
}

#[test]
fn a_daemon_outlives_its_keeper() {
    let Some(mut kept) = Kept::memory("outlives_its_keeper") else { return };
    fs::write(kept.root().join("f"), "x").unwrap();
    let keeper = kept.keeper.id();
    kept.keeper.kill().unwrap();
    kept.keeper.wait().unwrap();
    assert_eq!(fs::read(kept.root().join("f")).unwrap(), b"x");
    let status = control::all(&kept.state()).into_iter().next().unwrap();
    assert_eq!(status.keeper, Some(keeper));
    assert!(
        status.notes.iter().any(|note| note.contains("which kept this mount, is gone")),
        "{:?}",
        status.notes
    );
    let asked = control::ask(&kept.state(), &kept.root(), &Question::Unmount { lazy: false });
    assert_eq!(asked.unwrap(), Answer::Done);
}

#[test]
fn what_two_dead_processes_left_is_taken_away() {
    let Some(mut kept) = Kept::memory("what_two_dead_processes_left") else { return };
    let point = kept.root();
    fs::write(point.join("f"), "x").unwrap();
    assert!(!weir_userfs::mount::clear(&point).unwrap(), "a mount that is served stays");
    let daemon = kept.daemon();
    kept.keeper.kill().unwrap();
    kept.keeper.wait().unwrap();
    kept.kill(daemon);
    let is_dead = || rustix::fs::statfs(&point).is_err_and(|error| error == rustix::io::Errno::NOTCONN);
    until("the mount to be nobody's", is_dead);
    // Whoever mounts there anew finds a folder.
    let options = Options { kept: true, ..Options::default() };
    let task = Task { backend: "mem:16M".to_owned(), point: point.clone(), state: kept.state(), options };
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| weir_userfs::daemon::serve(task, &end));
        until("another mount", || control::ask(&kept.state(), &point, &Question::Status).is_ok());
        assert!(!point.join("f").exists());
        end.store(true, Ordering::Relaxed);
        serving.join().unwrap().unwrap();
    });
    assert!(!weir_userfs::mount::clear(&point).unwrap(), "nothing is left");
}
