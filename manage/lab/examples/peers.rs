//! The network comparison without Weir in it: the peers beside kernel VXLAN, to check the harness and the machine.
//!
//! `cargo run --release -p weir-lab --example peers -- [WINDOWS] [FOLDER]`

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use weir_lab::bench::net;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().map(String::as_str) {
        Some("lab-tool") => weir_lab::probe::datagram::tool(&arguments[1..]).map(|line| println!("{line}")),
        _ => compare(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compare(arguments: &[String]) -> weir_lab::Result<()> {
    let windows = arguments.first().and_then(|word| word.parse().ok()).unwrap_or(7);
    let own =
        std::env::current_exe().map_err(|error| weir_lab::Error::io("find this program's path", error))?;
    let options = net::Options { windows, stream_s: 2, tool: vec![own.into(), OsString::from("lab-tool")] };
    let (paths, missing) = net::peers();
    let mut report = net::run(paths, "kernel-vxlan", &options)?;
    report.not_run.extend(missing);
    println!("{}", report.terminal());
    if let Some(folder) = arguments.get(1) {
        report.write(&PathBuf::from(folder))?;
    }
    Ok(())
}
