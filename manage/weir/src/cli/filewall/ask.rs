//! `weir filewall check` and `weir filewall explain`.

use super::failure;
use crate::cli::output::{ansi, table};
use crate::exit::Exit;
use crate::failure::Failure;
use clap::Args;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_filewall::policy::explain::{Question, explain};
use weir_filewall::policy::{self, Mount};
use weir_filewall::wire::nfs3::Op;

/// `weir filewall check`
#[derive(Debug, Args)]
pub struct Check {
    /// File or folder of policies
    policy: PathBuf,
}

impl Check {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let chain = policy::look(&self.policy).map_err(failure)?;
        let mut shown = table(&["order", "policy", "kind"]);
        for (number, entry) in chain.entries().iter().enumerate() {
            shown.add_row([(number + 1).to_string(), entry.name.clone(), entry.policy.kind().to_string()]);
        }
        say!("{shown}");
        say!("{} policies, sound", chain.entries().len());
        if let Some(reason) = chain.refuses_nfs4() {
            say!("{reason}");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// `weir filewall explain`
#[derive(Debug, Args)]
pub struct Explain {
    /// File or folder of policies
    #[arg(long, value_name = "PATH")]
    policy: PathBuf,
    /// User, by name or number
    #[arg(long)]
    user: String,
    /// Operation of NFSv3, such as WRITE; MOUNT for a mount
    #[arg(long)]
    op: String,
    /// Address of the client's machine
    #[arg(long, default_value = "127.0.0.1")]
    client: IpAddr,
    /// Group, by name or number
    #[arg(long, default_value = "65534")]
    group: String,
    /// Time, such as 2026-11-21T18:00:00Z; now if it is not given
    #[arg(long)]
    at: Option<String>,
    /// Path below the export
    path: String,
}

impl Explain {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let chain = policy::look(&self.policy).map_err(failure)?;
        let identities = chain.identities();
        let uid = identities.uid(&self.user);
        let uid = uid.ok_or_else(|| unknown("user", &self.user, identities.users().map(|(name, _)| name)))?;
        let gid = identities.gid(&self.group);
        let gid = gid.ok_or_else(|| unknown("group", &self.group, identities.groups()))?;
        let caller = chain.principals().get(identities, self.client, uid, gid, &[]);
        let place = Some(&self.path).filter(|path| path.starts_with('/'));
        let place = place.and_then(|path| chain.context().zones.place(path.as_bytes()));
        let place = place.ok_or_else(|| {
            Failure::Input(format!(
                "'{}' is no path below the export: write it as /a/b, without '..'",
                self.path
            ))
        })?;
        let unix_ms = self.unix_ms()?;
        if self.op.eq_ignore_ascii_case("mount") {
            let now = weir_filewall::message::Now { unix_ms, steady_us: 0 };
            let mount = Mount { caller, path: self.path.into_bytes(), place, now };
            return Ok(verdict(chain.mount(&mount).err().map(|status| format!("{status:?}"))));
        }
        let op = Op::from_name(&self.op);
        let op = op.ok_or_else(|| {
            let names: Vec<&str> = Op::ALL.into_iter().map(Op::name).collect();
            Failure::Input(format!(
                "'{}' is no operation of NFSv3; there are MOUNT, {}",
                self.op,
                names.join(", ")
            ))
        })?;
        let steps = explain(&chain, &Question { caller, op, place, unix_ms }, &chain.context());
        let mut shown = table(&["policy", "kind", "does", "because"]);
        for step in &steps {
            let does = step.step.answer.map_or("forward".to_string(), |status| format!("answer {status:?}"));
            shown.add_row([step.policy.clone(), step.kind.to_string(), does, step.step.reason.clone()]);
        }
        say!("{shown}");
        Ok(verdict(steps.iter().find_map(|step| step.step.answer).map(|status| format!("{status:?}"))))
    }

    fn unix_ms(&self) -> Result<u64, Failure> {
        let Some(text) = &self.at else {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            return Ok(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
        };
        policy::time::parse_unix_ms(text).map_err(|error| Failure::Input(error.to_string()))
    }
}

/// A name that the identities do not have.
fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> Failure {
    let mut known: Vec<&str> = known.collect();
    known.sort_unstable();
    let known = if known.is_empty() { "they have none".to_string() } else { known.join(", ") };
    Failure::Input(format!("{what} '{name}' is not among the identities ({known}), and no number"))
}

fn verdict(denied: Option<String>) -> ExitCode {
    match denied {
        None => {
            say!("{}", ansi("allowed", 32));
            ExitCode::SUCCESS
        }
        Some(status) => {
            say!("{}", ansi(&format!("denied: {status}"), 31));
            Exit::No.into()
        }
    }
}
