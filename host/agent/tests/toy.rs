//! What a plane costs those who add one, held to the toy: the page walks through it as it is, and it touches few files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(name: &str) -> String {
    let path = root().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The code of a section of the page, a block each.
fn blocks(page: &str, section: &str) -> Vec<String> {
    let from = page.split(section).nth(1).unwrap_or_else(|| panic!("no section '{section}'"));
    let of_section = from.split("\n## ").next().unwrap();
    of_section.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_string()).collect()
}

/// The lines of code of a text, without what only people read.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"))
}

/// Every line that the page shows is in the source, in this order: what it leaves out is more, never other.
#[test]
fn the_page_shows_the_toy_as_it_is() {
    let page = read("docs/adding-a-plane.md");
    for (section, source) in [
        ("## 1. The vocabulary", "base/planes/src/echo.rs"),
        ("## 2. The list", "base/planes/src/lib.rs"),
        ("## 3. The actuator", "host/actuator/src/suite/echo.rs"),
        ("## 4. The suite", "host/actuator/src/tests.rs"),
    ] {
        let text = read(source);
        let shown = blocks(&page, section);
        assert!(!shown.is_empty(), "{section} shows no code");
        for block in shown {
            let mut rest = lines(&text);
            for line in lines(&block) {
                // The crate itself says 'crate' where others say its name.
                let own = line.replace("weir_planes::echo::Echo", "EchoPlane");
                let own = own.replace("weir_actuator::suite!", "crate::suite!");
                assert!(
                    rest.any(|there| there == line || there == own),
                    "{section}: '{line}' is not in {source} behind the line before it"
                );
            }
        }
    }
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !matches!(name, "tests" | "target" | "benches" | "examples") {
            sources(&path, found);
        } else if name.ends_with(".rs") && !matches!(name, "tests.rs" | "fixtures.rs") {
            found.push(path);
        }
    }
}

/// The toy is ordered, signed, carried, kept, acked, shown and audited, and all that names it outside its own two files is the
/// list of planes and the suite that has it as a module: what would be five files with a command, a page and a line in the
/// CHANGELOG.
#[test]
fn a_plane_touches_few_files() {
    let own = ["base/planes/src/echo.rs", "host/actuator/src/suite/echo.rs"];
    let mut files = Vec::new();
    for plane in ["base", "control", "host", "manage", "network", "storage"] {
        sources(&root().join(plane), &mut files);
    }
    assert!(files.len() > 800, "only {} sources were found", files.len());
    let names = ["echo::Echo", "echo::Toy", "mod echo;", "planes::echo", "suite::echo", "\"echo\""];
    let touched: BTreeSet<String> = files
        .iter()
        .filter(|path| {
            let text = std::fs::read_to_string(path).unwrap();
            lines(&text).any(|line| names.iter().any(|name| line.contains(name)))
        })
        .map(|path| path.strip_prefix(root()).unwrap().display().to_string())
        .filter(|name| !own.contains(&name.as_str()))
        .collect();
    let of_networks = |name: &String| name.starts_with("network/");
    let touched: Vec<String> = touched.into_iter().filter(|name| !of_networks(name)).collect();
    assert_eq!(touched, ["base/planes/src/lib.rs", "host/actuator/src/suite.rs"]);
}
