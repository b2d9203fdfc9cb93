//! `weir filewall push` and `withdraw`: policies that the controllers order. They travel as an update that the group signs; the
//! FileWall verifies and acks it itself (`--host-config`). `weir filewall order`: the same by the request of releases before.

use super::failure;
use crate::cli::ordered::ending;
use crate::cli::output::{Format, print};
use crate::cli::{Failure, plane};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weir_api::client::Client;
use weir_api::types::FileWallRequest;
use weir_filewall::policy;
use weir_model::filewall::{ORDER_BYTES_MAX, PolicyFile, files_problem};
use weir_planes::Plane as _;
use weir_planes::filewall::{FileWall, Spec};

/// `weir filewall order`
#[derive(Debug, Args)]
pub struct Order {
    /// The host or gateway
    host: String,
    /// Name of the FileWall there
    wall: String,
    /// Folder of policies: its .yaml, .yml and .wat files
    #[arg(required_unless_present = "withdraw", conflicts_with = "withdraw")]
    folder: Option<PathBuf>,
    /// Withdraw the order; the FileWall keeps the policies that it has
    #[arg(long)]
    withdraw: bool,
    /// Wait so long for the FileWall to have it in force; exit code 5 when it has not said so, 1 when it refuses
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=60))]
    wait_s: u32,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

impl Order {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self, connect: impl Fn() -> Result<Client, Failure>) -> Result<ExitCode, Failure> {
        let files = self.folder.as_deref().map(files_of).transpose()?;
        let wait_ms = self.wait_s.saturating_mul(1000);
        let response = connect()?.filewall(&self.host, &self.wall, &FileWallRequest { files, wait_ms })?;
        let who = format!("FileWall '{}'", self.wall);
        let who = (!self.withdraw).then_some(who.as_str());
        let (exit, text) = ending(response.in_force, response.outcome.as_ref(), self.wait_s, who);
        print(self.output, &response, || say!("ordered at v{}: {text}", response.version))?;
        Ok(exit.into())
    }
}

/// `weir filewall push`
#[derive(Debug, Args)]
pub struct Push {
    #[command(flatten)]
    at: At,
    /// Folder of policies: its .yaml, .yml and .wat files
    folder: PathBuf,
    /// Wait so long for the FileWall to have it in force; exit code 5 when it has not, 1 when it is refused
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=60))]
    wait_s: u32,
    #[command(flatten)]
    output: crate::cli::Output,
}

impl Push {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self, connect: impl Fn() -> Result<Client, Failure>) -> Result<ExitCode, Failure> {
        let spec = Spec { files: files_of(&self.folder)? };
        let spec = serde_json::to_value(spec).map_err(|error| Failure::Input(error.to_string()))?;
        let At { host, wall } = self.at;
        let at = plane::At::of(host, FileWall::NAME, wall, self.wait_s, self.output);
        plane::push(&connect()?, &at, spec)
    }
}

/// `weir filewall withdraw`
#[derive(Debug, Args)]
pub struct Withdraw {
    #[command(flatten)]
    at: At,
    /// Wait so long for the FileWall to say that it has no order any more
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=60))]
    wait_s: u32,
    #[command(flatten)]
    output: crate::cli::Output,
}

/// Which FileWall.
#[derive(Debug, Args)]
struct At {
    /// The host or gateway
    host: String,
    /// Name of the FileWall there
    wall: String,
}

impl Withdraw {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self, connect: impl Fn() -> Result<Client, Failure>) -> Result<ExitCode, Failure> {
        let At { host, wall } = self.at;
        plane::withdraw(&connect()?, &plane::At::of(host, FileWall::NAME, wall, self.wait_s, self.output))
    }
}

/// The files of a folder, as they are sent; what is wrong with them is said here and now.
fn files_of(folder: &Path) -> Result<Vec<PolicyFile>, Failure> {
    let shown = || Failure::io(folder.display().to_string());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(shown())? {
        let path = entry.map_err(shown())?.path();
        let kind = path.extension().and_then(|kind| kind.to_str());
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_string();
        if matches!(kind, Some("yaml" | "yml" | "wat")) {
            let about = std::fs::metadata(&path).map_err(Failure::io(path.display().to_string()))?;
            if !about.is_file() || about.len() > ORDER_BYTES_MAX as u64 {
                return Err(Failure::Input(format!(
                    "{} is no file of at most {ORDER_BYTES_MAX} bytes: an order has only such",
                    path.display()
                )));
            }
            let text = std::fs::read_to_string(&path).map_err(Failure::io(path.display().to_string()))?;
            files.push(PolicyFile { name, text });
        }
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(problem) = files_problem(&files) {
        return Err(Failure::Input(format!("{}: {problem}", folder.display())));
    }
    // Keys and states that policies make belong to the host, so they are checked in a folder that goes away.
    let aside = Aside::new()?;
    for file in &files {
        std::fs::write(aside.0.join(&file.name), &file.text).map_err(shown())?;
    }
    policy::load(&aside.0, None).map_err(failure)?;
    Ok(files)
}

/// A folder that goes away.
struct Aside(PathBuf);

impl Aside {
    fn new() -> Result<Aside, Failure> {
        use std::os::unix::fs::DirBuilderExt;
        // Nobody else can be there first, or look inside.
        let mut random = [0; 8];
        getrandom::fill(&mut random)
            .map_err(|error| Failure::Input(format!("no random numbers: {error}")))?;
        let name = format!("weir-policies-{:016x}", u64::from_ne_bytes(random));
        let path = std::env::temp_dir().join(name);
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(Failure::io(path.display().to_string()))?;
        Ok(Aside(path))
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // What cannot be removed is left to whoever cleans the folder of temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the folder that goes away.

    use super::Aside;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn policies_are_checked_in_a_folder_that_nobody_can_guess_or_look_into() {
        let (one, other) = (Aside::new().unwrap(), Aside::new().unwrap());
        assert_ne!(one.0, other.0);
        assert_eq!(one.0.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        let path = one.0.clone();
        drop(one);
        assert!(!path.exists() && other.0.exists());
    }
}
