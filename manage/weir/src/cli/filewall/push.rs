//! `weir filewall push` and `withdraw`: policies that go to a FileWall by the controllers. They travel as an update that the group signs,
//! and the switch of the host verifies it before the FileWall sees it. What the FileWall did with it comes back the other way ([`told`]).

use super::failure;
use crate::cli::Failure;
use crate::cli::output::{Format, print};
use crate::roles::told;
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weir_api::client::Client;
use weir_api::types::FileWallRequest;
use weir_filewall::policy;
use weir_model::filewall::{ORDER_BYTES_MAX, PolicyFile, files_problem};

/// Which FileWall, and how to wait for it.
#[derive(Debug, Args)]
pub struct Target {
    /// The host or gateway
    host: String,
    /// Name of the FileWall there
    wall: String,
    /// Wait so long for the FileWall to have it in force; exit code 5 when it has not said so, 1 when it refuses
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=60))]
    wait_s: u32,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// `weir filewall push`
#[derive(Debug, Args)]
pub struct Push {
    #[command(flatten)]
    target: Target,
    /// Folder of policies: its .yaml, .yml and .wat files
    folder: PathBuf,
}

/// `weir filewall withdraw`
#[derive(Debug, Args)]
pub struct Withdraw {
    #[command(flatten)]
    target: Target,
}

/// What `push` and `withdraw` were in the release before.
#[derive(Debug, Args)]
pub struct Order {
    #[command(flatten)]
    target: Target,
    #[arg(required_unless_present = "withdraw", conflicts_with = "withdraw")]
    folder: Option<PathBuf>,
    #[arg(long)]
    withdraw: bool,
}

type Connect<'a> = &'a dyn Fn() -> Result<Client, Failure>;

impl Push {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self, connect: Connect<'_>) -> Result<ExitCode, Failure> {
        let files = files_of(&self.folder)?;
        self.target.order(connect, Some(files))
    }
}

impl Withdraw {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self, connect: Connect<'_>) -> Result<ExitCode, Failure> {
        self.target.order(connect, None)
    }
}

impl Order {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self, connect: Connect<'_>) -> Result<ExitCode, Failure> {
        let files = self.folder.as_deref().map(files_of).transpose()?;
        self.target.order(connect, files)
    }
}

impl Target {
    fn order(self, connect: Connect<'_>, files: Option<Vec<PolicyFile>>) -> Result<ExitCode, Failure> {
        let who = files.is_some().then(|| format!("FileWall '{}'", self.wall));
        let request = FileWallRequest { files, wait_ms: self.wait_s.saturating_mul(1000) };
        let response = connect()?.filewall(&self.host, &self.wall, &request)?;
        let (exit, text) =
            told::ending(response.in_force, response.outcome.as_ref(), self.wait_s, who.as_deref());
        print(self.output, &response, || say!("ordered at v{}: {text}", response.version))?;
        Ok(exit.into())
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
