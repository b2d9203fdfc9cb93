// Compiles and links a blob: the interceptor's own sources and those of a client. Included by the build scripts of
// this crate and of crates that bring a client.

/// Flags without which the code could not run in a foreign process: see blob/weir.h.
const BLOB_FLAGS: [&str; 13] = [
    "-std=gnu11",
    "-ffreestanding",
    "-fPIE",
    "-fvisibility=hidden",
    "-mgeneral-regs-only",
    "-mno-red-zone",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fno-jump-tables",
    "-fcf-protection=none",
    "-fno-tree-loop-distribute-patterns",
    "-U_FORTIFY_SOURCE",
    "-g0",
];

/// Makes the blob `out` of the sources in `core` and of `client`. On other machines than x86-64 it is empty, which
/// says that nothing can be intercepted there.
///
/// # Errors
/// When the linker cannot be run or fails.
fn assemble(core: &std::path::Path, client: &[std::path::PathBuf], out: &std::path::Path) -> std::io::Result<()> {
    println!("cargo::rerun-if-changed={}", core.display());
    for source in client {
        println!("cargo::rerun-if-changed={}", source.display());
    }
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        return std::fs::write(out, []);
    }
    let mut build = cc::Build::new();
    build.include(core).opt_level(2).warnings(true).extra_warnings(true).warnings_into_errors(true);
    build.no_default_flags(true);
    for flag in BLOB_FLAGS {
        build.flag(flag);
    }
    let own = ["entry.S", "core.c", "signals.c", "patch.c", "find.c", "images.c", "exec.c", "every.c", "masks.c"].map(|name| core.join(name));
    let objects = build.flag("-O2").files(own).files(client).compile_intermediates();
    let mut link = build.get_compiler().to_command();
    link.args(["-nostdlib", "-static-pie", "-Wl,--no-dynamic-linker,--build-id=none,--oformat=binary,-T"]);
    link.arg(core.join("blob.ld")).args(objects).arg("-o").arg(out);
    if link.status()?.success() { Ok(()) } else { Err(std::io::Error::other(format!("this failed: {link:?}"))) }
}
