//! Suites of others, built by `scripts/fs-suites`: what holds for the file system below must hold through the kernel and for
//! accelerated programs.

use super::accelerated::{Accelerated, accelerated};
use super::{Mounted, cannot_mount};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use weir_userfs::mem::Limits;

/// Operations of fsx for each mount: a second or two.
const OPERATIONS: &str = "500";
/// What pjdfstest is told: users whom every Debian has, and that fallocate works.
const CONFIGURATION: &str = "[features]\nposix_fallocate = {}\nutimensat = {}\nutime_now = {}\n[settings]\nnaptime = 0.01\nallow_remount = false\n\
     [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"], [\"bin\", \"bin\"]]\n";

fn suite(test: &str, name: &str) -> Option<PathBuf> {
    if let Some(reason) = cannot_mount() {
        println!("NOT RUN {test}: {reason}");
        return None;
    }
    let folder = std::env::var_os("WEIR_FS_SUITES").map_or("/var/cache/weir/fs-suites".into(), PathBuf::from);
    let program = folder.join("bin").join(name);
    if !program.exists() {
        println!("NOT RUN {test}: {name} is not there; scripts/fs-suites builds it");
        return None;
    }
    Some(program)
}

/// A folder into which other users may go.
fn open_folder(below: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(below).unwrap();
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), all).unwrap();
    folder
}

/// What cannot be asked of any FUSE mount: libc does not know how many links it allows.
const UNKNOWN: &str = "link::link_count_max";

/// Names of tests that passed, that failed, and that it says it cannot run here.
#[derive(Debug, Default)]
struct Results {
    passed: BTreeSet<String>,
    failed: BTreeSet<String>,
    skipped: BTreeSet<String>,
}

fn results(output: &Output) -> Results {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let of = |word: &str| {
        let ended = text.lines().filter_map(|line| line.trim_end().strip_suffix(word));
        ended.map(|name| name.trim().to_owned()).collect::<BTreeSet<_>>()
    };
    Results { passed: of(" ok"), failed: of(" FAILED"), skipped: of(" skipped") }
}

/// Runs pjdfstest in `folder` by `command`.
fn pjdfstest(mut command: Command, folder: &Path) -> Results {
    let settings = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(settings.path(), CONFIGURATION).unwrap();
    command.env("NO_COLOR", "1").arg("-c").arg(settings.path()).arg("-p").arg(folder);
    let output = command.output().unwrap();
    let found = results(&output);
    assert!(found.passed.len() > 200, "it tested: {}", String::from_utf8_lossy(&output.stderr));
    found
}

/// What one of the kernel's own file systems does.
fn reference(program: &Path, below: &Path) -> Results {
    let folder = open_folder(below);
    pjdfstest(Command::new(program), folder.path())
}

/// What passes there passes here, and nothing is left out here but what is known.
fn compare(name: &str, there: &Results, here: &Results) {
    let lost: Vec<_> = there.passed.difference(&here.passed).filter(|test| *test != UNKNOWN).collect();
    assert!(
        lost.is_empty(),
        "{name}: these pass on the kernel's file system and not here: {lost:?}; {here:?}"
    );
    println!(
        "{name}: {} passed, {} failed, {} skipped",
        here.passed.len(),
        here.failed.len(),
        here.skipped.len()
    );
}

/// Users of the suite must reach the mount.
fn reachable(mounted: Mounted) -> Mounted {
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(mounted.root().parent().unwrap(), all).unwrap();
    mounted
}

#[test]
fn a_folder_passes_what_the_file_system_below_it_passes() {
    let Some(program) = suite("pjdfstest_dir", "pjdfstest") else { return };
    let on = reachable(Mounted::directory());
    let wanted = reference(&program, &on.under());
    compare("dir", &wanted, &pjdfstest(Command::new(&program), &on.root()));
}

#[test]
fn files_in_memory_pass_what_tmpfs_passes_through_the_kernel_and_accelerated() {
    let Some(program) = suite("pjdfstest_mem", "pjdfstest") else { return };
    let wanted = reference(&program, Path::new("/dev/shm"));
    let on = reachable(Mounted::memory(Limits::default()));
    compare("mem", &wanted, &pjdfstest(Command::new(&program), &on.root()));
    let Some(_) = accelerated("pjdfstest_accelerated") else { return };
    let on = Accelerated::of(reachable(Mounted::memory(Limits::default())));
    let root = on.on.root();
    compare("mem, accelerated", &wanted, &pjdfstest(on.command(program.to_str().unwrap()), &root));
}

#[test]
fn random_operations_on_one_file_agree_with_a_model() {
    let Some(program) = suite("fsx", "fsx") else { return };
    let settings = tempfile::NamedTempFile::new().unwrap();
    // A file that an accelerated process maps leaves the acceleration.
    std::fs::write(settings.path(), "[weights]\nmapread = 0\nmapwrite = 0\n").unwrap();
    let run = |name: &str, make: &dyn Fn() -> Command, root: &Path| {
        for (seed, maps) in [("1", true), ("2", false)] {
            let mut command = make();
            if !maps {
                command.arg("-f").arg(settings.path());
            }
            let file = root.join(format!("fsx-{seed}"));
            let kept = tempfile::tempdir().unwrap();
            command.args(["-q", "-N", OPERATIONS, "-S", seed, "-P"]).arg(kept.path()).arg(&file);
            let output = command.output().unwrap();
            assert!(output.status.success(), "{name}, seed {seed}: {output:?}");
        }
    };
    for on in [Mounted::directory(), Mounted::cached_directory(), Mounted::memory(Limits::default())] {
        run(on.name, &|| Command::new(&program), &on.root());
    }
    let Some(mut on) = accelerated("fsx_accelerated") else { return };
    let root = on.on.root();
    run("accelerated", &|| on.command(program.to_str().unwrap()), &root);
    let (reads, writes) = on.served();
    assert!(reads + writes > 100, "fsx reads and writes by itself: {reads} and {writes}");
}
