//! A C program publishes through the header; this reader finds and reads it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use weir_sensor::{Directory, Kind};

const PROGRAM: &str = r#"
#include "weir_sensor.h"
#include <stdio.h>
int main(int argc, char **argv) {
    if (argc != 2) return 9;
    sbparams_t params = { .sensors = 8, .records = 64, .period_ns = 2000000, .folder = argv[1] };
    int box = sbcreate("from-c", &params);
    if (box < 0) return 1;
    int requests = addsensor(box, "requests", WEIR_SENSOR_COUNTER);
    int gone = addsensor(box, "gone", WEIR_SENSOR_GAUGE);
    int errors = addsensor(box, "errors", WEIR_SENSOR_EVENT);
    if (sbexport(box) != 0) return 2;
    uint64_t three = 3;
    updatesensor(box, requests, &three, sizeof three);
    updatesensor(box, errors, "broken", 6);
    if (updatesensor(box, errors, "0123456789012345678901234567890123456789x", 41) == 0) return 3;
    if (rmsensor(box, gone) != 0) return 4;
    puts("ready"); fflush(stdout);
    getchar();
    return sbdestroy(box) == 0 ? 0 : 5;
}
"#;

#[test]
fn a_c_program_publishes() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("publish.c");
    let program = folder.path().join("publish");
    std::fs::write(&source, PROGRAM).unwrap();
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let compile = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-I", include, "-o"])
        .args([&program, &source])
        .status();
    match compile {
        Err(error) => {
            println!("NOT RUN a_c_program_publishes: no C compiler ({error})");
            return;
        }
        Ok(status) => assert!(status.success()),
    }
    let boxes = folder.path().join("boxes");
    let mut child =
        Command::new(&program).arg(&boxes).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let mut view = Directory::new(&boxes).discover("from-c").unwrap();
    assert_eq!((view.name(), view.period_ns(), view.process()), ("from-c", 2_000_000, u64::from(child.id())));
    assert_eq!(view.value(view.find("requests").unwrap()), Some(3));
    let errors = view.find("errors").unwrap();
    assert_eq!(view.sensor(errors).unwrap().kind, Kind::Event);
    assert_eq!(view.find("gone"), None);
    let mut seen = Vec::new();
    view.fetch(|record| seen.push((record.sensor, record.value().collect::<Vec<u8>>())));
    assert_eq!(seen, [(errors, b"broken".to_vec())]);
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert!(view.closed());
    assert!(Directory::new(&boxes).list().unwrap().is_empty());
}

/// Both headers, as a translation unit of C++ has them.
const CXX_PROGRAM: &str = r#"
#include "weir_sensor.h"
#include "weir_sensor_reader.h"
#include <cstdio>
static uint64_t records;
static void on_record(const sbrecord_t *record, void *) { records += record->length; }
int main(int argc, char **argv) {
    if (argc != 2) return 9;
    sbparams_t params = {};
    params.sensors = 8; params.records = 64; params.period_ns = 2000000; params.folder = argv[1];
    int box = sbcreate("from-cxx", &params);
    if (box < 0) return 1;
    int requests = addsensor(box, "requests", WEIR_SENSOR_COUNTER);
    int errors = addsensor(box, "errors", WEIR_SENSOR_EVENT);
    if (sbexport(box) != 0) return 2;
    sbview_t *view = nullptr;
    sbfetched_t found;
    if (sbdiscover(argv[1], "from-cxx", &view) != 0) return 3;
    sbassociate(view, errors, on_record, nullptr);
    uint64_t three = 3, value = 0;
    updatesensor(box, requests, &three, sizeof three);
    updatesensor(box, errors, "broken", 6);
    sbfetch(view, &found);
    if (records != 6 || sbvalue(view, sbfind(view, "requests"), &value) != 0 || value != 3) return 4;
    sbclose(view);
    return sbdestroy(box) == 0 ? 0 : 5;
}
"#;

#[test]
fn both_headers_are_c_and_cxx_of_every_age() {
    let folder = tempfile::tempdir().unwrap();
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let program = folder.path().join("program");
    let source = folder.path().join("both.cc");
    std::fs::write(&source, CXX_PROGRAM).unwrap();
    for standard in ["-std=c++11", "-std=c++14", "-std=c++17", "-std=c++20"] {
        let compile = Command::new("g++")
            .args([standard, "-Wall", "-Wextra", "-Werror", "-O2", "-I", include, "-o"])
            .args([&program, &source])
            .status();
        match compile {
            Err(error) => {
                println!("NOT RUN both_headers_are_c_and_cxx_of_every_age: no C++ compiler ({error})");
                return;
            }
            Ok(status) => assert!(status.success(), "{standard}"),
        }
        let boxes = folder.path().join("boxes");
        assert_eq!(Command::new(&program).arg(&boxes).status().unwrap().code(), Some(0), "{standard}");
        assert!(Directory::new(&boxes).list().unwrap().is_empty(), "{standard}");
    }
}
