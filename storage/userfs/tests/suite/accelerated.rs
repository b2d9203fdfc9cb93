//! Programs that reach files without the kernel, beside others that do not: both must always see the same.
#![allow(unsafe_code)]

use super::{Mounted, cannot_mount};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use weir_intercept::{Calls, Injector, announce_for};
use weir_userfs::accelerate;
use weir_userfs::mem::Limits;
use weir_userfs::segment::SegmentFigures;

pub const PYTHON: &str = "/usr/bin/python3";

pub struct Accelerated {
    injector: Injector,
    pub on: Mounted,
}

pub fn accelerated(test: &str) -> Option<Accelerated> {
    if let Some(reason) = cannot_mount() {
        println!("NOT RUN {test}: {reason}");
        return None;
    }
    if let Err(error) = weir_intercept::possible() {
        println!("NOT RUN {test}: {error}");
        return None;
    }
    Some(Accelerated::of(Mounted::memory(Limits::default())))
}

impl Accelerated {
    pub fn of(mut on: Mounted) -> Accelerated {
        let injector = accelerate::start(on.mount()).expect("an injector");
        Accelerated { injector, on }
    }

    pub fn command(&self, program: &str) -> Command {
        self.command_for(program, Calls::Known)
    }

    /// The same, and which calls are seen.
    pub fn command_for(&self, program: &str, calls: Calls) -> Command {
        let mut command = Command::new(program);
        let name = self.injector.name().to_owned();
        // SAFETY: a question by a socket between fork and exec; fork leaves the allocator usable.
        unsafe {
            command.pre_exec(move || {
                std::mem::forget(announce_for(&name, calls).map_err(std::io::Error::other)?);
                Ok(())
            });
        }
        command.current_dir(self.on.root());
        command
    }

    /// Programs that were left alone, by reason.
    pub fn refused(&self) -> std::collections::BTreeMap<String, u64> {
        self.injector.figures().refused
    }

    pub fn shell(&self, script: &str) -> String {
        let output = self.command("bash").args(["-ec", script]).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn figures(&mut self) -> SegmentFigures {
        self.on.mount().backend().segment().unwrap().figures()
    }

    /// Reads and writes that were served without the kernel.
    pub fn served(&mut self) -> (u64, u64) {
        let figures = self.on.mount().backend().segment().unwrap().figures();
        (figures.reads, figures.writes)
    }
}

/// An interpreter that does one line after the other; between lines it stands still.
pub struct Partner {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Partner {
    /// Accelerated.
    pub fn new(of: &Accelerated) -> Partner {
        Partner::by(of.command(PYTHON))
    }

    /// Not accelerated.
    pub fn plain(of: &Accelerated) -> Partner {
        let mut command = Command::new(PYTHON);
        command.current_dir(of.on.root());
        Partner::by(command)
    }

    pub fn by(mut command: impl std::borrow::BorrowMut<Command>) -> Partner {
        let code = "import os, sys, mmap\nfor line in sys.stdin:\n    try:\n        r = eval(line) if not \
                    line.startswith('!') else exec(line[1:])\n    except OSError as e:\n        r = -e.errno\n    \
                    print(repr(r), flush=True)";
        let mut child = command
            .borrow_mut()
            .args(["-c", code])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Partner { child, to, from }
    }

    pub fn ask(&mut self, what: &str) -> String {
        writeln!(self.to, "{what}").unwrap();
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    pub fn number(&mut self, what: &str) -> i64 {
        let answer = self.ask(what);
        answer.parse().unwrap_or_else(|_| panic!("{what}: {answer}"))
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn a_written_file_is_read_back_without_the_kernel() {
    let Some(mut on) = accelerated("written_and_read") else { return };
    let script = "import os\nd = os.urandom(3000000)\nf = os.open('f', os.O_RDWR | os.O_CREAT)\nfor i in range(0, 3000000, \
                  1000): assert os.write(f, d[i:i+1000]) == 1000\nassert os.lseek(f, 0, 1) == 3000000\nos.lseek(f, 0, 0)\nr = \
                  b''\nwhile True:\n    p = os.read(f, 4097)\n    if not p: break\n    r += p\nassert r == d\nassert \
                  os.pread(f, 10, 2999995) == d[-5:]\nassert os.fstat(f).st_size == 3000000\nassert open('f','rb').read() == d";
    let output = on.command(PYTHON).args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let (reads, writes) = on.served();
    assert!(reads > 700, "{reads} reads were served");
    assert_eq!(writes, 3000, "all writes were served");
    assert_eq!(fs::metadata(on.on.root().join("f")).unwrap().len(), 3_000_000);
}

#[test]
fn every_order_of_writes_and_looks_by_both_sides() {
    let Some(mut on) = accelerated("orders") else { return };
    let path = on.on.root().join("f");
    fs::write(&path, vec![b'a'; 10_000]).unwrap();
    let mut partner = Partner::new(&on);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let read = |at: u64, bytes: usize| {
        let mut seen = vec![0; bytes];
        let got = file.read_at(&mut seen, at).unwrap();
        String::from_utf8(seen[..got].to_vec()).unwrap()
    };
    let fd = partner.number("os.open('f', os.O_RDWR)");
    // Warm kernel cache, overwritten past it.
    assert_eq!(read(0, 4), "aaaa");
    assert_eq!(partner.number(&format!("os.pwrite({fd}, b'bbbb', 0)")), 4);
    assert_eq!(read(0, 8), "bbbbaaaa");
    // Extended past it: size and data.
    assert_eq!(file.metadata().unwrap().size(), 10_000);
    assert_eq!(partner.number(&format!("os.pwrite({fd}, b'end', 10000)")), 3);
    assert_eq!(file.metadata().unwrap().size(), 10_003);
    assert_eq!(read(9_999, 100), "aend");
    assert_eq!(partner.number(&format!("os.pwrite({fd}, b'far', 100000)")), 3);
    assert_eq!(read(100_000, 100), "far");
    // Written by the kernel's side, read past it at once.
    file.write_all_at(b"kern", 4).unwrap();
    assert_eq!(partner.ask(&format!("os.pread({fd}, 8, 0)")), "b'bbbbkern'");
    // Truncated by either side.
    file.set_len(6).unwrap();
    assert_eq!(partner.ask(&format!("os.pread({fd}, 100, 0)")), "b'bbbbke'");
    assert_eq!(partner.ask(&format!("os.ftruncate({fd}, 3)")), "None");
    assert_eq!(read(0, 100), "bbb");
    // Grown again: zeros, never what was there.
    assert_eq!(partner.number(&format!("os.pwrite({fd}, b'x', 5)")), 1);
    assert_eq!(read(0, 100), "bbb\0\0x");
    // A map of the kernel's sees it, and is seen.
    file.set_len(8192).unwrap();
    let mut own = Partner::plain(&on);
    let other = own.number("os.open('f', os.O_RDWR)");
    own.ask(&format!("!global m; m = mmap.mmap({other}, 8192)"));
    assert_eq!(own.ask("m[0:3]"), "b'bbb'");
    assert_eq!(partner.number(&format!("os.pwrite({fd}, b'ccc', 0)")), 3);
    assert_eq!(own.ask("m[0:3]"), "b'ccc'");
    // A dirty page of a map must not undo what was written past it, nor be missed by a read.
    own.ask("!m[100:104] = b'maps'");
    assert_eq!(partner.ask(&format!("os.pread({fd}, 4, 100)")), "b'maps'");
    own.ask("!m[200:204] = b'more'");
    assert_eq!(partner.number(&format!("os.pwrite({fd}, b'ddd', 0)")), 3);
    own.ask("!m.flush()");
    assert_eq!(read(0, 3) + &read(100, 4) + &read(200, 4), "dddmapsmore");
    // What an accelerated process maps may grow behind its back.
    let mapped = partner.number("os.open('m', os.O_RDWR | os.O_CREAT)");
    assert_eq!(partner.number(&format!("os.write({mapped}, b'x' * 100)")), 100);
    partner.ask(&format!("!os.ftruncate({mapped}, 0); os.pwrite({mapped}, b'y' * 8192, 0)"));
    partner.ask(&format!("!global n; n = mmap.mmap({mapped}, 8192); n[8191:8192] = b'z'"));
    assert_eq!(partner.ask(&format!("os.pread({mapped}, 2, 8190)")), "b'yz'");
    // Unlinked and renamed by either side.
    fs::rename(&path, on.on.root().join("g")).unwrap();
    assert_eq!(partner.number(&format!("os.pwrite({fd}, b'eee', 0)")), 3);
    assert_eq!(fs::read(on.on.root().join("g")).unwrap()[..3], *b"eee");
    assert_eq!(partner.ask("os.unlink('g')"), "None");
    assert_eq!(partner.ask(&format!("os.pread({fd}, 3, 0)")), "b'eee'");
    assert!(!on.on.root().join("g").exists());
    let (_, writes) = on.served();
    assert!(writes >= 5, "{writes} writes were served");
}

#[test]
fn positions_are_shared_as_the_kernel_shares_them() {
    let Some(on) = accelerated("positions") else { return };
    // Redirections: the shell opens, others write; several writers share one description.
    let script = "{ echo one; /bin/echo two; (echo three); cat <<< four; } > out; cat out; \
                  { read a; read b; echo \"$a-$b\"; cat; } < out; exec 5<>out; read -u5 c; /bin/echo FIVE >&5; echo $c; cat out; \
                  for i in 1 2 3; do echo $i; done >> out; tail -1 out; wc -c < out";
    let seen = on.shell(script);
    assert!(seen.starts_with("one\ntwo\nthree\nfour\none-two\nthree\nfour\none\none\nFIVE\n"), "{seen}");
    let python = r"
import os, socket
f = os.open('p', os.O_RDWR | os.O_CREAT)
os.write(f, b'0123456789')
os.lseek(f, 2, 0)
assert os.read(f, 2) == b'23'
d = os.dup(f)
assert os.read(d, 2) == b'45'
pid = os.fork()
if pid == 0:
    assert os.read(f, 1) == b'6'
    os.execv('/bin/sh', ['sh', '-c', f'dd bs=1 count=1 status=none <&{os.dup(f)}; :']) if False else os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert os.read(f, 1) == b'7' and os.lseek(d, 0, 1) == 8
g = os.open('p', os.O_RDONLY)
assert os.read(g, 3) == b'012'
a, b = socket.socketpair(socket.AF_UNIX)
socket.send_fds(a, [b'x'], [g])
_, got, _, _ = socket.recv_fds(b, 1, 1)
assert os.read(got[0], 3) == b'345' and os.read(g, 3) == b'678'
h = os.open('p', os.O_RDONLY)
assert os.read(h, 4) == b'0123'
os.set_inheritable(h, True)
r, w = os.pipe()
if os.fork() == 0:
    os.dup2(w, 1)
    os.execv('/usr/bin/head', ['head', '-c3', f'/proc/self/fd/{h}'])
os.close(w)
assert os.read(r, 10) == b'012'
if os.fork() == 0:
    os.dup2(h, 0)
    os.execv('/bin/sh', ['sh', '-c', 'sh -c \'dd bs=1 count=2 status=none of=q\''])
os.wait(); os.wait()
assert open('q').read() == '45' and os.read(h, 2) == b'67'
os.dup2(g, h)
assert os.read(h, 5) == b'9'
os.close(h); os.close(g)
k = os.open('/etc/hostname', os.O_RDONLY)
assert os.read(k, 100) == open('/etc/hostname','rb').read()
x = os.open('app', os.O_WRONLY | os.O_CREAT | os.O_APPEND); y = os.open('app', os.O_WRONLY | os.O_APPEND)
for i in range(100):
    os.write(x, b'x%02d' % i); os.write(y, b'y%02d' % i)
assert open('app').read() == ''.join('x%02dy%02d' % (i, i) for i in range(100))
try:
    os.write(g, b'no'); assert False
except OSError: pass
s = os.open('app', os.O_RDONLY); t = os.open('copy', os.O_RDWR | os.O_CREAT)
os.read(s, 3); os.sendfile(t, s, None, 6)
assert os.pread(t, 100, 0) == b'y00x01' and os.read(s, 3) == b'y01' and os.lseek(t, 0, 1) == 6
try:
    os.read(t, -1)
except (OSError, ValueError): pass
print('fine')
";
    let output = on.command(PYTHON).args(["-c", python]).output().unwrap();
    assert!(output.status.success() && output.stdout == b"fine\n", "{output:?}");
}

#[test]
fn threads_and_processes_race_for_bytes_and_each_is_read_once() {
    let Some(on) = accelerated("races") else { return };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/races.c");
    let folder = tempfile::tempdir().unwrap();
    for linking in ["-pie", "-static"] {
        let program = folder.path().join("races");
        let built =
            Command::new("cc").args(["-O1", "-pthread", linking, "-o"]).arg(&program).arg(&source).status();
        assert!(built.expect("cc").success());
        let output = on.command(program.to_str().unwrap()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "fine\n", "{linking} {output:?}");
    }
}

#[test]
fn a_process_that_is_killed_holds_nobody_up() {
    let Some(on) = accelerated("killed") else { return };
    let path = on.on.root().join("f");
    for _ in 0..20 {
        let script = "import os\nf = os.open('f', os.O_RDWR | os.O_CREAT)\nprint(1, flush=True)\nwhile True: os.pwrite(f, \
                      b'x' * 100000, 0); os.pread(f, 100000, 0)";
        let mut child = on.command(PYTHON).args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
        child.kill().unwrap();
        child.wait().unwrap();
        fs::write(&path, "alive").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"alive");
    }
}

#[test]
fn real_programs_work_on_accelerated_files() {
    let Some(mut on) = accelerated("real_programs") else { return };
    let script = "mkdir t; for i in $(seq 200); do echo $i > t/$i; done; tar cf t.tar t; mkdir u; tar xf t.tar -C u; \
                  diff -r t u/t; cat u/t/* | sort -n | cmp - <(seq 200); gzip -k t.tar; gunzip -c t.tar.gz | cmp - t.tar; \
                  echo same";
    assert_eq!(on.shell(script), "same\n");
    let (reads, writes) = on.served();
    assert!(reads > 0 && writes > 200, "{reads} reads and {writes} writes were served");
    let program = |name: &str| {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name).display().to_string()
    };
    let optional: [(&str, &str, &str); 11] = [
        (
            "git",
            "git init -q r; cd r; git config user.email a@b; git config user.name a; seq 9999 > f; git add f; \
                 git commit -qm one; git gc -q; git fsck; git log --oneline | wc -l; cd ..; git clone -q r c 2>&1; cmp r/f c/f && echo cloned",
            "1\ncloned\n",
        ),
        (
            "rsync",
            "rsync -a t/ v; rm v/7; echo changed > v/8; rsync -a t/ v; diff -r t v && echo copied",
            "copied\n",
        ),
        (
            "python3",
            "python3 -c 'import json, shelve, shutil; s = shelve.open(\"shelf\"); s[\"a\"] = list(range(1000)); s.close(); shutil.copytree(\"t\", \"w\"); \
             print(sum(shelve.open(\"shelf\")[\"a\"]), len(open(\"w/200\").read()))'",
            "499500 4\n",
        ),
        (
            "bash",
            // What launchers of other programs do: options are read by a subshell into an array, output is redirected and kept.
            "printf -- '--class\\nMain\\n' > options; CMD=(); while read -r A; do CMD+=(\"$A\"); done < <(cat options); \
             exec 3>log; echo ${CMD[@]} >&3; { echo out; echo err >&2; } >>log 2>&1; exec 3>&-; cat log",
            "--class Main\nout\nerr\n",
        ),
        (
            "sqlite3",
            "sqlite3 d 'pragma journal_mode=wal; create table t(a); insert into t values(1),(2); select sum(a) from \
                     t; pragma integrity_check'",
            "wal\n3\nok\n",
        ),
        ("java", &format!("java -XX:TieredStopAtLevel=1 {}", program("FilesOf.java")), "19907 -1\n"),
        ("node", &format!("node {}", program("files.js")), "19900 1048579 end\n"),
        (
            "mdb_load",
            "(printf 'VERSION=3\\nformat=print\\ntype=btree\\nmapsize=8388608\\nHEADER=END\\n'; seq 500 | sed 's/.*/ k&\\n v&/'; echo DATA=END) | \
             mdb_load -n lmdb; mdb_dump -n -p lmdb | grep -c ' v'; mdb_stat -n lmdb | grep Entries",
            "500\n  Entries: 500\n",
        ),
        (
            "redis-server",
            // It begins again with what the first one has synced.
            "d=$(mktemp -d); ask() { redis-cli -s $d/s \"$@\"; }; begin() { redis-server --port 0 --unixsocket $d/s --dir . --appendonly yes \
             --appendfsync always --daemonize yes --logfile $d/log >/dev/null; until ask ping >/dev/null 2>&1; do sleep 0.05; done; }; begin; \
             seq 300 | sed 's/.*/set k& v&/' | ask >/dev/null; ask bgrewriteaof >/dev/null; ask save; ask shutdown; while [ -e $d/s ]; do sleep \
             0.05; done; begin; ask get k299; ask dbsize; ask shutdown nosave; rm -r $d",
            "OK\nv299\n300\n",
        ),
        (
            "gcc",
            "printf '#include <stdio.h>\\nint main(){puts(\"built\");}' > a.c; gcc -o a.out a.c; ./a.out",
            "built\n",
        ),
        (
            "/bin/busybox",
            "/bin/busybox sh -c 'echo hello > b; /bin/busybox cat b; /bin/busybox md5sum b | cut -c1-6'",
            "hello\nb1946a\n",
        ),
    ];
    for (program, script, wanted) in optional {
        if Command::new("sh")
            .args(["-c", &format!("command -v {program}")])
            .output()
            .unwrap()
            .stdout
            .is_empty()
        {
            println!("NOT RUN real_programs {program}: it is not installed");
            continue;
        }
        assert_eq!(on.shell(script), wanted, "{program}");
    }
}

#[test]
fn a_file_of_an_archive_is_read_again_without_the_kernel() {
    if accelerated("archive_again").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = "mkdir t; seq 300000 > t/numbers; head -c 100 /dev/zero > t/zeros; : > t/nothing; tar cf s.tar t; tar czf s.tar.gz t";
    let made = Command::new("bash").args(["-ec", script]).current_dir(folder.path()).status().unwrap();
    assert!(made.success());
    for name in ["s.tar", "s.tar.gz"] {
        let archive = weir_userfs::archive::Archive::open(&folder.path().join(name)).unwrap();
        let mut on = Accelerated::of(Mounted::of("archive", archive));
        // The end is known though nothing is here yet; a map and a write do not disturb.
        let script = "import os, mmap\nf = os.open('t/numbers', os.O_RDONLY)\nsize = os.lseek(f, 0, 2)\nassert size == 1988895, size\n\
                      first = [os.pread(f, 4096, at) for at in range(0, size, 4096)]\n\
                      for _ in range(3): assert first == [os.pread(f, 4096, at) for at in range(0, size, 4096)]\n\
                      m = mmap.mmap(f, 0, prot=mmap.PROT_READ)\nassert b''.join(first) == m[:] and m[:4] == b'1\\n2\\n'\n\
                      assert os.pread(f, 9000, size - 10) == m[-10:] and os.pread(f, 10, size + 1) == b''\n\
                      assert open('t/zeros', 'rb').read() == bytes(100) and open('t/nothing').read() == ''\n\
                      try: os.open('t/numbers', os.O_RDWR); assert False\nexcept OSError as e: assert e.errno == 30";
        let output = on.command(PYTHON).args(["-c", script]).output().unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
        let (reads, writes) = on.served();
        assert!(reads >= 3 * 485 && writes == 0, "{name}: {reads} reads and {writes} writes were served");
        assert_eq!(
            on.shell("cat t/numbers | md5sum; seq 300000 | md5sum")
                .lines()
                .collect::<std::collections::HashSet<_>>()
                .len(),
            1
        );
    }
}
