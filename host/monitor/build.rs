//! Compiles the kernel's programs with clang, if it is there. Without it the monitor is built all the same, and says at
//! run time that it hears the kernel by the slower way (see `src/kernel`).

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names that clang has in distributions, newest first; `WEIR_CLANG` names another.
const NAMES: [&str; 5] = ["clang", "clang-19", "clang-16", "clang-15", "clang-14"];

fn compile(clang: &str, to: &Path) -> Result<(), String> {
    let output = Command::new(clang)
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror"])
        .args(["-I", "../sensor/include", "-I", "bpf", "-c", "bpf/kernel.bpf.c", "-o"])
        .arg(to)
        .output()
        .map_err(|error| format!("{clang}: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{clang}: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

fn main() {
    for path in ["bpf/kernel.bpf.c", "bpf/shape.h", "../sensor/include/weir_sensor.h"] {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::rerun-if-env-changed=WEIR_CLANG");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let object = out.join("kernel.bpf.o");
    let wanted = std::env::var("WEIR_CLANG").ok();
    let names: Vec<&str> = wanted.as_deref().map_or(NAMES.to_vec(), |name| vec![name]);
    let mut reasons = Vec::new();
    let compiled =
        names.iter().any(|name| compile(name, &object).map_err(|reason| reasons.push(reason)).is_ok());
    let source = if compiled {
        let bytes = "include_bytes!(concat!(env!(\"OUT_DIR\"), \"/kernel.bpf.o\"))";
        format!("/// The compiled programs.\npub(crate) const OBJECT: Option<&[u8]> = Some({bytes});\n")
    } else {
        let first = reasons.iter().find(|reason| !reason.contains("No such file")).or(reasons.first());
        println!(
            "cargo::warning=the monitor is built without its kernel programs, and will be slower: install clang ({})",
            first.map_or("", |reason| reason.lines().next().unwrap_or(""))
        );
        "/// There was no clang when this was built.\npub(crate) const OBJECT: Option<&[u8]> = None;\n"
            .to_string()
    };
    if let Err(error) = std::fs::write(out.join("object.rs"), source) {
        println!("cargo::error=writing object.rs: {error}");
    }
}
