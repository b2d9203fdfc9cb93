//! Compiles the segment, and the blob whose client uses it: C, because the same lines run in foreign processes
//! (docs/decisions/0010).

use std::path::{Path, PathBuf};

include!("../../host/intercept/build/assemble.rs");

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=segment");
    println!("cargo::rerun-if-changed=../../host/intercept/build");
    cc::Build::new()
        .files(["segment/segment.c", "segment/names.c", "segment/calls.c"])
        .flag("-std=gnu11")
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .compile("weir_segment");
    let out = std::env::var_os("OUT_DIR").ok_or_else(|| std::io::Error::other("OUT_DIR is not set"))?;
    let client = [
        "client.c",
        "transfer.c",
        "private.c",
        "named.c",
        "attributes.c",
        "stash.c",
        "pages.c",
        "locks.c",
        "calls.c",
        "segment.c",
        "names.c",
    ]
    .map(|name| Path::new("segment").join(name));
    assemble(Path::new("../../host/intercept/blob"), &client, &PathBuf::from(out).join("files.blob"))
}
