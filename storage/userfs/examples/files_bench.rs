//! `make bench-files`: the same work on tmpfs, through FUSE, and accelerated; FUSE and accelerated with the same
//! backend, the hook really in place; and on a folder of that tmpfs, whose files the kernel has itself (passthrough), or
//! the daemon reads and writes (cached). Rounds are interleaved; medians are printed, with context switches a file.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use weir_userfs::accelerate;
use weir_userfs::dir::Directory;
use weir_userfs::mem::{Limits, Memory};
use weir_userfs::mount::{Mount, Options};

const ROUNDS: usize = 5;
const WAYS: [&str; 5] = ["weir", "fuse", "tmpfs", "passthrough", "cached"];

type Figures = BTreeMap<String, Vec<f64>>;
type Failure = Box<dyn std::error::Error>;

fn run(program: &Path, on: &Path, injector: Option<&str>, into: &mut Figures) -> Result<(), Failure> {
    let mut command = Command::new(program);
    command.arg(on);
    if let Some(name) = injector.map(str::to_owned) {
        // SAFETY: a question by a socket between fork and exec of a process with idle threads only.
        unsafe {
            command.pre_exec(move || {
                std::mem::forget(weir_intercept::announce(&name).map_err(std::io::Error::other)?);
                Ok(())
            });
        }
    }
    let output = command.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    for line in String::from_utf8(output.stdout)?.lines() {
        if let Some((name, figure)) = line.split_once(' ') {
            into.entry(name.to_owned()).or_default().push(figure.parse()?);
        }
    }
    Ok(())
}

fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("work");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/work.c");
    if !Command::new("cc").args(["-O2", "-o"]).arg(&program).arg(source).status()?.success() {
        return Err("cc failed".into());
    }
    let (point, tmpfs) = (folder.path().join("mount"), tempfile::tempdir_in("/dev/shm")?);
    std::fs::create_dir(&point)?;
    let backend = Arc::new(Memory::new(Limits::default(), 0, 0)?);
    let mount = Mount::new(backend, &point, &Options { source: "bench".to_owned(), ..Options::default() })?;
    let injector = accelerate::start(&mount)?;
    let (below, points) =
        (tempfile::tempdir_in("/dev/shm")?, ["passthrough", "cached"].map(|name| folder.path().join(name)));
    let mut folders = Vec::new();
    for (point, cached) in points.iter().zip([false, true]) {
        let under = below.path().join(if cached { "cached" } else { "passthrough" });
        std::fs::create_dir(point)?;
        std::fs::create_dir(&under)?;
        let options = Options { source: "bench".to_owned(), cached, ..Options::default() };
        folders.push(Mount::new(Arc::new(Directory::open(&under)?), point, &options)?);
    }
    let mut figures: [Figures; 5] = Default::default();
    for _ in 0..ROUNDS {
        run(&program, &point, Some(injector.name()), &mut figures[0])?;
        run(&program, &point, None, &mut figures[1])?;
        run(&program, tmpfs.path(), None, &mut figures[2])?;
        run(&program, &points[0], None, &mut figures[3])?;
        run(&program, &points[1], None, &mut figures[4])?;
    }
    let names: Vec<String> = figures[0].keys().cloned().collect();
    for name in names {
        let unit = name.rsplit('_').next().unwrap_or_default().replace("switches", "");
        let of: Vec<f64> =
            figures.iter_mut().filter_map(|way| way.get_mut(&name).map(|all| median(all))).collect();
        for peer in 1..WAYS.len() {
            let ratio = if of[peer] == 0.0 { "-".to_owned() } else { format!("{:.2}", of[0] / of[peer]) };
            println!(
                "RESULT files {name} {}={:.2}{unit} {}={:.2}{unit} ratio={ratio}",
                WAYS[0], of[0], WAYS[peer], of[peer]
            );
        }
    }
    Ok(())
}
