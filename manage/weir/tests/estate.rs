//! The bench of the estate runs, a little of each part: its figures say nothing, and it does not rot.

use crate::lab::text;
use std::process::Command;

#[test]
fn the_bench_of_the_estate_measures_every_part_and_draws_it() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("results");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .args(["bench", "estate", "--quick", "--folder"])
        .arg(folder.path())
        .arg("--results")
        .arg(&results);
    let output = command.env("NO_COLOR", "1").output().unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", text(&output.stderr));
    let figure = |name: &str| -> f64 {
        let line = said.lines().find(|line| line.starts_with(&format!("RESULT estate {name} weir=")));
        let value = line.unwrap_or_else(|| panic!("no {name} in: {said}")).split_once("weir=").unwrap().1;
        let digits = value.split(|one: char| !(one.is_ascii_digit() || one == '.')).next().unwrap();
        digits.parse().unwrap()
    };
    for name in [
        "local-none-one-1",
        "local-none-all-4",
        "raft-linear-one-4",
        "raft-linear-all-1",
        "bft-dependent-one-1",
        "bft-dependent-all-4",
        "batch-raft-0ms-1",
        "batch-bft-0ms-100",
        "signatures-one-key",
        "signatures-shares",
        "signatures-shares-at-switches",
        "signatures-endorsed",
    ] {
        assert!(figure(name) > 0.0, "{name}: {said}");
    }
    // Counted, so the same on every machine: halves of a pod order each what begins or ends there.
    assert_eq!((figure("domains-hadoop-1"), figure("domains-web-1")), (5_000.0, 5_000.0));
    let halves = figure("domains-hadoop-2");
    assert!((3_700.0..3_900.0).contains(&halves), "three quarters of all flows touch one half: {halves}");
    assert!(said.contains("dependent-over-linear-one-4 bft-dependent="), "{said}");
    for name in [
        "domains",
        "signatures",
        "batches-rate",
        "batches-latency",
        "consistency-one-rate",
        "consistency-all-latency",
    ] {
        let picture = std::fs::read_to_string(results.join(format!("estate-{name}.svg"))).unwrap();
        assert!(picture.starts_with("<svg") && picture.contains("<polyline"), "{name}");
    }
}
