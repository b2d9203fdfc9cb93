//! `weir operator`: the people whose signed requests a domain takes, and the keys with which they sign.
//!
//! A key is made here and its secret stays in its file: the settings of controllers, and the domain, have the public half. Commands sign
//! with it unseen, where the context has it (`operator` in admin.json) or a file is named (`--operator`, WEIR_OPERATOR).

use super::consent::Consent;
use super::written::{Force, Readers, is_stdout};
use super::{Failure, Output, output};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weir_api::client::Client;
use weir_api::operator::{OperatorKey, agent};
use weir_api::types::{OperatorList, OperatorRequest, OperatorView};
use weir_model::Label;
use weir_model::join::to_hex;
use weir_model::operator::OperatorRole;

/// Largest file of a key that is read, bytes.
const FILE_BYTES_MAX: u64 = 4096;

/// What an operator may order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Everything
    Admin,
    /// Resources, planes, repairs and policies of FileWalls; neither who takes part, nor domains, nor operators
    Operator,
}

impl From<Role> for OperatorRole {
    fn from(role: Role) -> OperatorRole {
        match role {
            Role::Admin => OperatorRole::Admin,
            Role::Operator => OperatorRole::Operator,
        }
    }
}

fn word(role: OperatorRole) -> &'static str {
    match role {
        OperatorRole::Admin => "admin",
        OperatorRole::Operator => "operator",
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum Operator {
    /// Make a key, write it to a file that is yours alone, and print the line for the part 'operators' of controllers' settings
    Key(Key),
    /// List the operators whose requests are taken, and say whether requests must be signed here
    List(List),
    /// Add an operator. The first one of a domain is an admin, and from then on requests must be signed, for good
    Add(Put),
    /// Give an operator another role, or other keys: all that are taken then
    Change(Put),
    /// Take nothing of an operator any more; the last admin stays
    Remove(Remove),
}

#[derive(Debug, Args)]
pub(super) struct Key {
    /// Name of the operator
    name: Label,
    /// The domain in which it signs: a key is for one
    #[arg(long, default_value = "weir")]
    domain: Label,
    /// Make no key: take the ed25519 key of the ssh agent that has this comment; the file says which it is, and is no secret
    #[arg(long, value_name = "COMMENT")]
    agent: Option<String>,
    /// What the printed line lets it order
    #[arg(long, value_enum, default_value_t = Role::Admin)]
    role: Role,
    /// The file to write, '-' for the standard output [default: NAME.key]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Put {
    /// Name of the operator
    name: Label,
    /// A public key, as 'weir operator key' prints it; up to four times, for the machines at which it works
    #[arg(long = "key", required = true, value_name = "HEX")]
    keys: Vec<String>,
    /// What it may order
    #[arg(long, value_enum)]
    role: Role,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Remove {
    /// Name of the operator
    name: Label,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    output: Output,
}

/// Reads the file of a key, which must be its owner's alone.
///
/// # Errors
/// [`Failure`].
pub(crate) fn read(path: &Path) -> Result<OperatorKey, Failure> {
    let name = path.display().to_string();
    let about = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::Missing(format!(
            "operator's key {name}: there is no such file; 'weir operator key NAME --out {name}' makes one"
        )),
        _ => Failure::io(format!("operator's key {name}"))(error),
    })?;
    if !about.is_file() || about.len() > FILE_BYTES_MAX {
        return Err(Failure::Input(format!(
            "operator's key {name}: it is no file of at most {FILE_BYTES_MAX} bytes"
        )));
    }
    if about.permissions().mode() & 0o077 != 0 {
        return Err(Failure::Input(format!(
            "operator's key {name}: others can read or change it, and would be you: 'chmod 600 {name}', or make another if somebody did"
        )));
    }
    let text = std::fs::read_to_string(path).map_err(Failure::io(format!("operator's key {name}")))?;
    let key: OperatorKey = weir_document::read(&text).map_err(|error| {
        Failure::Input(format!("operator's key {name}: {error}; it should be what 'weir operator key' wrote"))
    })?;
    key.public().map_err(|error| Failure::Input(format!("operator's key {name}: {error}")))?;
    Ok(key)
}

/// The ed25519 key of the ssh agent that has a comment.
fn in_agent(comment: &str) -> Result<[u8; 32], Failure> {
    let keys = agent::socket().and_then(|socket| agent::keys(&socket)).map_err(Failure::Refused)?;
    let mut found = keys.iter().filter(|key| key.comment == comment);
    match (found.next(), found.next()) {
        (Some(key), None) => Ok(key.public),
        (Some(_), Some(_)) => {
            Err(Failure::Input(format!("--agent: several keys of the ssh agent are called '{comment}'")))
        }
        (None, _) => {
            let all: Vec<String> = keys.iter().map(|key| format!("'{}'", key.comment)).collect();
            Err(Failure::Missing(format!(
                "--agent: no ed25519 key of the ssh agent is called '{comment}'; it has {}",
                if all.is_empty() {
                    "none ('ssh-keygen -t ed25519', 'ssh-add')".to_owned()
                } else {
                    all.join(", ")
                }
            )))
        }
    }
}

impl Key {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let out = self.out.unwrap_or_else(|| PathBuf::from(format!("{}.key", self.name)));
        let key = match &self.agent {
            None => OperatorKey::make(self.name, self.domain).map_err(Failure::Refused)?,
            Some(comment) => OperatorKey::in_agent(self.name, self.domain, &in_agent(comment)?),
        };
        let public = to_hex(&key.public().map_err(Failure::Refused)?);
        let shown = out.display().to_string();
        self.force.write(&out, Readers::Owner, |file| {
            let text =
                serde_json::to_string_pretty(&key).map_err(|error| Failure::Refused(error.to_string()))?;
            file.write_all(text.as_bytes()).map_err(Failure::io(shown.clone()))
        })?;
        let role = word(self.role.into());
        let line = format!("- {{ name: {}, key: \"{public}\", role: {role} }}", key.name);
        if is_stdout(&out) {
            tell!("{line}");
            return Ok(ExitCode::SUCCESS);
        }
        let fields = json!({"name": key.name, "key": public, "role": role, "file": shown});
        output::done(self.output.output, fields, &line)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Operator {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        match self {
            Operator::Key(key) => return key.run(),
            Operator::List(List { output }) => {
                let list = client.operators()?;
                output::print(output.output, &list, || say!("{}", text(&list)))?;
            }
            Operator::Add(put) => {
                let list = client.operators()?;
                if find(&list, &put.name).is_some() {
                    return Err(Failure::Refused(format!(
                        "operator '{0}' is there already: 'weir operator change {0}' gives it another role or other keys",
                        put.name
                    )));
                }
                add(client, put, &list)?;
            }
            Operator::Change(put) => {
                let list = client.operators()?;
                find(&list, &put.name).ok_or_else(|| nobody(&put.name))?;
                let Put { name, keys, role, output } = put;
                client.put_operator(&name, &OperatorRequest { role: role.into(), keys }, false)?;
                let words = format!("Operator '{name}' has role {} and these keys only.", word(role.into()));
                output::done(output.output, json!({"changed": name}), &words)?;
            }
            Operator::Remove(Remove { name, consent, output }) => {
                let list = client.operators()?;
                find(&list, &name).ok_or_else(|| nobody(&name))?;
                let what = format!("Nothing of operator '{name}' is taken any more, by none of its keys.");
                if consent.given(&what)? {
                    client.remove_operator(&name)?;
                    output::done(output.output, json!({"removed": name}), &what)?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn find<'a>(list: &'a OperatorList, name: &Label) -> Option<&'a OperatorView> {
    list.items.iter().find(|one| one.name == name.as_str())
}

fn nobody(name: &Label) -> Failure {
    Failure::Missing(format!("no operator is named '{name}': 'weir operator list' shows them"))
}

/// Adds one by the word of an admin, or the first one.
fn add(client: &Client, put: Put, list: &OperatorList) -> Result<(), Failure> {
    let Put { name, keys, role, output } = put;
    let request = OperatorRequest { role: role.into(), keys };
    let mut words = format!("Operator '{name}' is added, with role {}.", word(role.into()));
    client.put_operator(&name, &request, true)?;
    if !list.signed {
        words.push_str(" From now on what operators order must be signed here: give every context a key.");
    }
    output::done(output.output, json!({"added": name}), &words)
}

/// The operators in words.
fn text(list: &OperatorList) -> String {
    if list.items.is_empty() {
        return "No operator is known here, and nobody need sign: one controller that is taken over can order anything. Put operators into the \
                settings of the controllers ('weir operator key' prints the line), and start them again."
            .to_owned();
    }
    let mut table = output::table(&["operator", "role", "keys"]);
    for one in &list.items {
        table.add_row(vec![one.name.clone(), word(one.role).to_owned(), one.keys.join("\n")]);
    }
    let rule =
        if list.signed { "What operators order must be signed here." } else { "Nobody need sign here." };
    format!("{rule}\n{table}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_others_can_read_is_refused_with_the_cure() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("alice.key");
        let key = OperatorKey::make("alice".parse().unwrap(), "lab".parse().unwrap()).unwrap();
        std::fs::write(&path, serde_json::to_string(&key).unwrap()).unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o600);
        assert_eq!(read(&path).unwrap(), key);
        for open in [0o640, 0o604, 0o620] {
            mode(open);
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 600"), "{error}");
        }
        mode(0o600);
        for damaged in ["", "{}", "name: alice\ndomain: lab\nseed: \"12\"\n"] {
            std::fs::write(&path, damaged).unwrap();
            assert!(read(&path).unwrap_err().to_string().contains("alice.key"), "{damaged}");
        }
        let missing = read(&dir.path().join("none")).unwrap_err().to_string();
        assert!(missing.contains("weir operator key NAME"), "{missing}");
    }
}
