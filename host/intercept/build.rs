//! Builds the blob whose client serves nothing, for tests and for measuring the interceptor by itself.

use std::path::{Path, PathBuf};

include!("build/assemble.rs");

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=build");
    let out = std::env::var_os("OUT_DIR").ok_or_else(|| std::io::Error::other("OUT_DIR is not set"))?;
    let out = PathBuf::from(out).join("none.blob");
    let core = Path::new("blob");
    assemble(core, &[core.join("none.c")], &out)?;
    // The patcher by itself, for its tests, and what the injector looks for calls with.
    let alone = ["find.c", "patch.c", "patch_alone.c"].map(|name| core.join(name));
    cc::Build::new().files(alone).flag("-std=gnu11").opt_level(2).compile("weir_patch");
    Ok(())
}
