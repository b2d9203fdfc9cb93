//! Programs that we did not write, accelerated: they must end as they do elsewhere.

use super::accelerated::accelerated;
use super::crashes::Kept;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A user without rights, with whom nobody else works.
const NOBODY: u32 = 65_534;
const POSTGRES: &str = "/usr/lib/postgresql/15/bin";

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn descriptors_are_waited_for_and_used_by_rings() {
    let Some(mut on) = accelerated("waits") else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("waits");
    let built = Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(source("waits.c")).status();
    assert!(built.expect("cc").success());
    let plain = text(&Command::new(&program).current_dir(on.on.root()).output().unwrap());
    assert!(plain.ends_with("fine\n"), "{plain}");
    // Accelerated as on a file system of the kernel's own, where no file is watched; by FUSE the kernel watches it.
    let below = text(&Command::new(&program).current_dir(folder.path()).output().unwrap());
    let own = text(&on.command(program.to_str().unwrap()).output().unwrap());
    assert_eq!(own, below);
    assert!(own.contains("epoll_ctl: -1 Operation not permitted"), "{own}");
    let (reads, writes) = on.served();
    assert!(reads >= 2 && writes >= 4, "{reads} reads and {writes} writes were served");
}

#[test]
fn a_go_program_uses_files() {
    let Some(mut on) = accelerated("a_go_program") else { return };
    let go = ["/usr/local/go/bin/go", "/usr/bin/go"].into_iter().find(|path| Path::new(path).exists());
    let Some(go) = go else { return println!("NOT RUN a_go_program: there is no Go") };
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("files");
    let mut build = Command::new(go);
    build.args(["build", "-o"]).arg(&program).arg(source("files.go")).env("CGO_ENABLED", "0");
    build.env("GOCACHE", folder.path().join("cache")).env("HOME", folder.path());
    assert!(build.status().unwrap().success());
    let said = text(&on.command(program.to_str().unwrap()).output().unwrap());
    assert_eq!(said, "800 3196000\nover the page\nparent\nchild\nchild\nparent\n");
    let (reads, writes) = on.served();
    assert!(reads >= 800 && writes >= 790, "{reads} reads and {writes} writes were served");
}

#[test]
fn fio_finds_what_it_wrote() {
    let Some(mut on) = accelerated("fio") else { return };
    if !Path::new("/usr/bin/fio").exists() {
        return println!("NOT RUN fio: it is not installed");
    }
    for (engine, more) in [
        ("psync", ""),
        ("sync", "--fsync=16"),
        ("mmap", ""),
        ("libaio", "--iodepth=8"),
        ("io_uring", "--iodepth=8"),
    ] {
        for pattern in ["randrw", "write"] {
            let name = format!("{engine}-{pattern}");
            let mut fio = on.command("/usr/bin/fio");
            fio.args([
                &format!("--name={name}"),
                &format!("--ioengine={engine}"),
                &format!("--rw={pattern}"),
            ]);
            fio.args(["--size=4M", "--bs=1k-32k", "--numjobs=2", "--verify=crc32c", "--verify_fatal=1"]);
            fio.args(["--fallocate=none", "--thread=0"]).args((!more.is_empty()).then_some(more));
            let output = fio.output().unwrap();
            assert!(output.status.success(), "{name}: {output:?}");
        }
    }
    let (reads, writes) = on.served();
    assert!(reads > 100 && writes > 100, "{reads} reads and {writes} writes were served");
}

/// As the user that owns the mount, in it.
fn by_nobody(kept: &Kept, program: &str) -> Command {
    let mut command = kept.command(program);
    command.env("HOME", kept.root()).env("LC_ALL", "C");
    command
}

#[test]
fn a_database_is_made_used_and_found_again() {
    let initdb = format!("{POSTGRES}/initdb");
    if !Path::new(&initdb).exists() {
        return println!("NOT RUN a_database: PostgreSQL is not installed");
    }
    if let Err(error) = weir_intercept::possible() {
        return println!("NOT RUN a_database: {error}");
    }
    let Some(kept) = Kept::of_user("a_database", NOBODY) else { return };
    let made = by_nobody(&kept, &initdb).args(["-D", "data", "-A", "trust", "-U", "weir"]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let single = |sql: &str| {
        let mut postgres = by_nobody(&kept, &format!("{POSTGRES}/postgres"));
        postgres.args(["--single", "-D", "data", "postgres"]);
        let mut child =
            postgres.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(sql.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    single(
        "create table t as select i, md5(i::text) as m from generate_series(1, 20000) i;\ncreate index on t (m);\ncheckpoint;\n",
    );
    // The daemon dies between two of its programs, and in the middle of one.
    kept.next_daemon();
    let killer = std::thread::scope(|scope| {
        let killer = scope.spawn(|| kept.next_daemon());
        single("update t set m = m || 'x' where i % 2 = 0;\nvacuum full t;\ncheckpoint;\n");
        killer.join()
    });
    killer.expect("another daemon came");
    let said = single("select count(*), sum(length(m)), min(m) from t;\n");
    assert!(said.contains("\"20000\"") && said.contains("\"650000\""), "{said}");
    let status = kept.status().unwrap();
    let figures = status.segment.unwrap();
    assert!(figures.reads > 100 && figures.writes > 100, "{figures:?}");
}
