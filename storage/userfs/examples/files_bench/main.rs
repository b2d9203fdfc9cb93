//! `make bench-files`: the same work on files in memory reached in every way that there is: by an accelerated program, through FUSE (the same
//! backend), directly on tmpfs, through Debian's libfuse on that tmpfs, through FUSE with kernel passthrough on it, through a newer libfuse
//! that is asked over io_uring (`uring`: for data too; `uring_passthrough`: only for the rest), and by a library for LD_PRELOAD with the
//! same segment; through FUSE of a mount that nobody could be accelerated on (`plain`); and with fsync on the disk's file system (`ext4` where /var/tmp is on one). The hook is really in place. Rounds are interleaved; medians are printed.
//!
//! `files_bench [PART] [ROUNDS] [FILES OF THE TREE] [WAYS]`; ways are names with commas between, and all unless said; a part is one of `small`, `mixed`, `large`, `unaccelerated`, `maps`, `calls`, `exec`, `stash`, `synced`,
//! `archive`, `tree`, `all`.
#![allow(unsafe_code)]

mod left;
mod trees;
mod ways;

use std::collections::BTreeMap;
use std::process::Command;
use ways::{Way, Ways};

const ROUNDS: usize = 5;
/// Files of the tree that is unpacked and copied.
const TREE_FILES: usize = 4000;

/// Why the bench ends.
pub type Failure = Box<dyn std::error::Error>;
/// By name of a figure, then of a way.
pub type Figures = BTreeMap<String, BTreeMap<&'static str, Vec<f64>>>;

/// What programs of the workloads are asked for, and by which ways.
struct Part {
    name: &'static str,
    /// What is asked for first, without being measured.
    before: &'static [&'static str],
    workloads: &'static [&'static str],
    ways: &'static [&'static str],
}

impl Part {
    /// Of the names of its figures.
    fn prefix(&self) -> &'static str {
        if self.name == "unaccelerated" { "unaccelerated_" } else { "" }
    }
}

const EVERY: &[&str] =
    &["weir", "direct", "libfuse", "passthrough", "uring", "uring_passthrough", "fuse", "preload"];
const PARTS: [Part; 9] = [
    Part {
        name: "small",
        before: &["folders"],
        workloads: &["small_write", "small_read", "small_rewrite"],
        ways: EVERY,
    },
    Part { name: "mixed", before: &["folders"], workloads: &["mixed_write", "mixed_read"], ways: EVERY },
    Part {
        name: "large",
        before: &[],
        workloads: &["large_write", "large_read", "mapped_reads"],
        ways: &["weir", "direct", "libfuse", "passthrough", "uring", "uring_passthrough", "fuse"],
    },
    // Programs that are not accelerated lose nothing by it that others are.
    Part {
        name: "unaccelerated",
        before: &["folders"],
        workloads: &[
            "small_write",
            "small_read",
            "small_rewrite",
            "mixed_write",
            "mixed_read",
            "large_write",
            "large_read",
        ],
        ways: &["fuse", "plain"],
    },
    // What a map of our own would cost in place of the kernel's (docs/decisions/0034-maps-by-the-page-cache.md).
    Part {
        name: "maps",
        before: &["large_write"],
        workloads: &["mapped_reads", "faulted_reads", "faulted_far_reads", "copied_reads"],
        ways: &["weir", "direct"],
    },
    Part { name: "calls", before: &[], workloads: &["calls"], ways: EVERY },
    Part { name: "exec", before: &[], workloads: &["exec"], ways: &["weir", "fuse"] },
    Part {
        name: "stash",
        before: &["folders", "small_write"],
        workloads: &["stash"],
        ways: &["weir", "fuse", "direct"],
    },
    Part {
        name: "synced",
        before: &["folders"],
        workloads: &["synced_write"],
        ways: &[
            "weir",
            "direct",
            "libfuse",
            "passthrough",
            "uring_passthrough",
            "ext4_passthrough",
            "ext4_direct",
            "ext4_libfuse",
            "ext4_uring_passthrough",
        ],
    },
];

/// Runs the workloads of `part` by `way` in a folder that is new.
fn work(ways: &Ways, part: &Part, way: &Way, round: usize, into: &mut Figures) -> Result<(), Failure> {
    let folder = way.root.join(format!("{}-{round}", part.name));
    std::fs::create_dir(&folder)?;
    let mut command = way.command(ways.program("work"));
    let output = command.arg(&folder).args(part.before).args(part.workloads).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{} by {}: {said}", part.name, way.name).into());
    }
    for line in String::from_utf8(output.stdout)?.lines() {
        let Some((name, figure)) = line.split_once(' ') else { continue };
        if !part.before.iter().any(|workload| name.starts_with(workload)) {
            into.entry(format!("{}{name}", part.prefix()))
                .or_default()
                .entry(way.name)
                .or_default()
                .push(figure.parse()?);
        }
    }
    if folder.exists() && !Command::new("rm").arg("-rf").arg(&folder).status()?.success() {
        return Err("rm failed".into());
    }
    Ok(())
}

fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// A line a figure and peer; the first of `ways` is ours.
fn show(figures: &mut Figures, ways: &[&'static str]) {
    for (name, by) in figures {
        let (what, unit) = name.rsplit_once('_').unwrap_or((name, ""));
        let (what, unit) = if unit == "switches" { (name.as_str(), "") } else { (what, unit) };
        let Some(own) = by.get_mut(ways[0]).map(|all| median(all)) else { continue };
        for peer in &ways[1..] {
            let Some(theirs) = by.get_mut(peer).map(|all| median(all)) else { continue };
            let ratio = if theirs == 0.0 { "-".to_owned() } else { format!("{:.2}", own / theirs) };
            println!("RESULT files {what} {}={own:.2}{unit} {peer}={theirs:.2}{unit} ratio={ratio}", ways[0]);
        }
    }
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let wanted = arguments.next().unwrap_or_else(|| "all".to_owned());
    let rounds = arguments.next().map_or(Ok(ROUNDS), |text| text.parse())?;
    let files = arguments.next().map_or(Ok(TREE_FILES), |text| text.parse())?;
    let mut ways = Ways::new()?;
    if let Some(only) = arguments.next() {
        ways.keep(&only.split(',').collect::<Vec<_>>());
    }
    let is_wanted = |name: &str| wanted == "all" || wanted == name;
    for part in PARTS.iter().filter(|part| is_wanted(part.name)) {
        let mut figures = Figures::new();
        for round in 0..rounds {
            for way in part.ways.iter().filter_map(|name| ways.find(name)) {
                work(&ways, part, way, round, &mut figures)?;
            }
        }
        let (below, memory): (Vec<_>, Vec<_>) = part.ways.iter().partition(|way| way.starts_with("ext4"));
        show(&mut figures, &memory);
        if !below.is_empty() {
            show(&mut figures, &below);
        }
    }
    if is_wanted("archive") {
        show(&mut trees::archive(&ways, rounds)?, &["weir", "direct", "fuse", "shared"]);
    }
    if is_wanted("tree") {
        show(&mut trees::tree(&ways, rounds, files)?, trees::WAYS);
    }
    Ok(())
}
