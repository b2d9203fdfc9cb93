//! `weir bench net`.

use super::net_path::Weir;
use crate::failure::Failure;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use weir_lab::bench::net::{Options, Path, peers, run};

#[derive(Debug, Args)]
pub struct Net {
    /// Windows; figures that are shown to others need at least 7
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=99))]
    windows: u32,
    /// Length of a TCP stream, seconds
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=30))]
    stream_s: u32,
    /// Only these peers, such as kernel-vxlan; without it, all
    #[arg(long)]
    peer: Vec<String>,
    /// Another build of this program, measured as the peer weir-beside: for comparing two of them
    #[arg(long)]
    beside: Option<PathBuf>,
    /// Where results are written
    #[arg(long, default_value = "bench-results")]
    results: PathBuf,
}

impl Net {
    /// With the usual options.
    pub fn usual() -> Net {
        Net { windows: 7, stream_s: 2, peer: Vec::new(), beside: None, results: "bench-results".into() }
    }

    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let own = std::env::current_exe().map_err(Failure::io("finding this program"))?;
        let (mut paths, missing) = peers();
        paths.extend(Weir::with_veth_ports(&own).map(|path| Box::new(path) as Box<dyn Path>));
        paths.push(Box::new(Weir::with_xdp_underlay(&own)));
        paths.retain(|path| self.peer.is_empty() || self.peer.iter().any(|name| name == path.name()));
        let weir: Box<dyn Path> = Box::new(Weir::new(own.clone()));
        paths.insert(0, weir);
        paths.extend(self.beside.map(|program| Box::new(Weir::beside(program)) as Box<dyn Path>));
        let options = Options {
            windows: self.windows,
            stream_s: self.stream_s,
            tool: vec![own.into(), OsString::from("lab-tool")],
        };
        let mut report = run(paths, "weir", &options)?;
        report.not_run.extend(missing);
        say!("{}", report.terminal());
        report.write(&self.results)?;
        Ok(ExitCode::SUCCESS)
    }
}
