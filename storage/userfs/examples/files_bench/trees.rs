//! Trees of files: unpacked and copied by real programs, and read in place from an archive.
#![allow(unsafe_code)]

use crate::ways::{Way, Ways};
use crate::{Failure, Figures, left};
use std::collections::HashSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;
use weir_userfs::accelerate;
use weir_userfs::archive::Archive;
use weir_userfs::mount::{Mount, Options};

/// By which the tree is unpacked and copied.
pub const WAYS: &[&str] = &["weir", "direct", "libfuse", "passthrough", "uring_passthrough", "fuse"];
/// Files of a folder of the tree, and folders of a folder.
const FILES_OF_FOLDER: usize = 12;
const FOLDERS_OF_FOLDER: usize = 8;
/// How often the files of an archive are read again in a round.
const AGAIN: usize = 3;

/// Sizes as of a source tree: half are below 4 KiB, few above 64 KiB.
fn bytes_of(number: usize) -> usize {
    let mixed = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    200 << (mixed % 10) | (mixed as usize % 199)
}

/// A tree of `files` files in folders of folders.
fn plant(root: &Path, files: usize) -> Result<(), Failure> {
    let text: Vec<u8> =
        (0u32..1 << 16).flat_map(|word| (word.wrapping_mul(2_654_435_761) % 96 + 32).to_le_bytes()).collect();
    let mut folder = root.to_owned();
    for number in 0..files {
        if number % FILES_OF_FOLDER == 0 {
            let (above, place) = (number / FILES_OF_FOLDER / FOLDERS_OF_FOLDER, number / FILES_OF_FOLDER);
            folder = root.join(format!("part{}/part{above}/part{place}", above / FOLDERS_OF_FOLDER));
            std::fs::create_dir_all(&folder)?;
        }
        std::fs::write(folder.join(format!("source_{number}.c")), &text[..bytes_of(number).min(text.len())])?;
    }
    Ok(())
}

fn ran(command: &mut Command) -> Result<(), Failure> {
    let output = command.output()?;
    if output.status.success() {
        Ok(())
    } else {
        // One line a file would be many.
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{:?}: {}", command.get_program(), said.lines().next().unwrap_or_default()).into())
    }
}

/// Voluntary context switches of children that have ended.
fn switches() -> f64 {
    // SAFETY: plain numbers, all zero is a value; filled in by the kernel.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    usage.ru_nvcsw as f64
}

fn measured(name: &str, way: &Way, command: &mut Command, into: &mut Figures) -> Result<(), Failure> {
    let (begun, before) = (Instant::now(), switches());
    ran(command)?;
    let figures = [("ms", begun.elapsed().as_secs_f64() * 1e3), ("switches", switches() - before)];
    for (unit, figure) in figures {
        into.entry(format!("{name}_{unit}")).or_default().entry(way.name).or_default().push(figure);
    }
    Ok(())
}

/// A tree is unpacked by tar, and copied by rsync. The first time of each way has figures of its own: it is in memory that nobody used before,
/// which a guest has to get from its host, and a file system that keeps its memory needs no more then. Who begins changes from round to round.
pub fn tree(ways: &Ways, rounds: usize, files: usize) -> Result<Figures, Failure> {
    let (kept, mut figures) = (left::folder("/dev/shm")?, Figures::new());
    let (planted, archive) = (kept.path().join("tree"), kept.path().join("tree.tar"));
    plant(&planted, files)?;
    ran(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&planted).arg("."))?;
    let mut lost = HashSet::new();
    for round in 0..rounds {
        let mut by: Vec<&Way> = WAYS.iter().filter_map(|name| ways.find(name)).collect();
        let begins = round % by.len().max(1);
        by.rotate_left(begins);
        let names = if round == 0 { ["untar_first", "rsync_first"] } else { ["untar", "rsync"] };
        for way in by {
            if lost.contains(way.name) {
                continue;
            }
            let folder = way.root.join(format!("tree-{round}"));
            let done = unpack_and_copy(way, names, (&planted, &archive), &folder, &mut figures);
            ran(Command::new("rm").arg("-rf").arg(&folder))?;
            match done {
                // Ours may not fail; servers that keep a descriptor for each file have too few of them for large trees.
                Err(error) if !["weir", "direct"].contains(&way.name) => {
                    println!("NOT RUN tree by {}: {error}", way.name);
                    lost.insert(way.name);
                }
                other => other?,
            }
        }
    }
    Ok(figures)
}

fn unpack_and_copy(
    way: &Way,
    names: [&str; 2],
    (planted, archive): (&Path, &Path),
    folder: &Path,
    into: &mut Figures,
) -> Result<(), Failure> {
    let (unpacked, copied) = (folder.join("unpacked"), folder.join("copied"));
    std::fs::create_dir_all(&unpacked)?;
    let mut tar = way.command("/bin/tar");
    measured(names[0], way, tar.arg("-xf").arg(archive).arg("-C").arg(&unpacked), into)?;
    let mut from = planted.as_os_str().to_owned();
    from.push("/");
    let mut rsync = way.command("/usr/bin/rsync");
    measured(names[1], way, rsync.arg("-a").arg(from).arg(&copied), into)?;
    ran(Command::new("diff").arg("-r").arg(&unpacked).arg(&copied))
}

/// The small and mixed files of the workloads in a tar.gz, read in place the first time since it was mounted, and again; directly: the
/// same files, unpacked already. `shared` is ours where a program that is not accelerated has looked at all files before, so that the kernel knows
/// them.
pub fn archive(ways: &Ways, rounds: usize) -> Result<Figures, Failure> {
    let (kept, mut figures) = (left::folder("/dev/shm")?, Figures::new());
    let (files, packed) = (kept.path().join("files"), kept.path().join("files.tar.gz"));
    std::fs::create_dir(&files)?;
    let work = ways.program("work");
    ran(Command::new(&work).arg(&files).args(["folders", "small_write", "mixed_write"]))?;
    ran(Command::new("tar").arg("-czf").arg(&packed).arg("-C").arg(&files).arg("."))?;
    for round in 0..rounds {
        for name in ["weir", "direct", "fuse", "shared"] {
            let point = kept.path().join(format!("{name}-{round}"));
            std::fs::create_dir(&point)?;
            let options = Options { source: "bench".to_owned(), ..Options::default() };
            let mount = match name {
                "direct" => None,
                _ => Some(Mount::new(Arc::new(Archive::open(&packed)?), &point, &options)?),
            };
            let is_ours = ["weir", "shared"].contains(&name);
            let injector = mount.as_ref().filter(|_| is_ours).map(accelerate::start).transpose()?;
            let asked = injector.as_ref().map(|injector| injector.name().to_owned());
            let way = Way::new(name, if mount.is_some() { &point } else { &files }, asked);
            if name == "shared" {
                ran(Command::new("find").arg(&point).args(["-size", "+1G"]))?;
            }
            read_all(&work, &way, "archive_first", &mut figures)?;
            for _ in 0..AGAIN {
                read_all(&work, &way, "archive", &mut figures)?;
            }
        }
    }
    Ok(figures)
}

fn read_all(work: &Path, way: &Way, prefix: &str, into: &mut Figures) -> Result<(), Failure> {
    let output = way.command(work).arg(&way.root).args(["small_read", "mixed_read"]).output()?;
    if !output.status.success() {
        return Err(format!("reading by {}: {}", way.name, String::from_utf8_lossy(&output.stderr)).into());
    }
    for line in String::from_utf8(output.stdout)?.lines() {
        let Some((name, figure)) = line.split_once(' ') else { continue };
        into.entry(format!("{prefix}_{name}"))
            .or_default()
            .entry(way.name)
            .or_default()
            .push(figure.parse()?);
    }
    Ok(())
}
