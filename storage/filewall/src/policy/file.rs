//! The files that administrators write: YAML, one policy a document, in the order in which requests meet them.
//!
//! A folder of policies is read as its `*.yaml` and `*.yml` in the order of their names (`10-handles.yaml` comes before
//! `20-access.yaml`). A document of kind `identities` is no policy of the chain: it gives users, groups and roles their names, wherever
//! it stands. Neither is one of kind `none`, which says that everything is to be let through, nor one of kind `replication`: it says which servers are behind the chain. Everything is checked before anything is put in force; what is wrong is said with file, document and reason.

use super::Policy;
use super::access::{Access, AccessFile};
use super::alarm::{Alarm, AlarmFile};
use super::audit::{Audit, AuditFile};
use super::chain::{Chain, Entry, POLICIES_MAX};
use super::error::PolicyError;
use super::freeze::{Freeze, FreezeFile};
use super::handles::{Handles, HandlesFile};
use super::home::Home;
use super::machines::{Machines, MachinesFile};
use super::module::{ModuleFile, ModulePolicy};
use super::quota::{Quota, QuotaFile};
use super::rate::{Rate, RateFile};
use super::rbac::{Rbac, RbacFile};
use super::remap::{Remap, RemapFile};
use super::reorder::{Reorder, ReorderFile};
use super::statistics::{Statistics, StatisticsFile};
use crate::error::{Error, Result};
use crate::identity::{Identities, IdentitiesFile};
use crate::places::Zones;
use crate::replicate::{ReplicationFile, Servers};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Longest policy file, bytes.
pub const FILE_BYTES_MAX: u64 = 4 << 20;
/// Most files in a folder of policies.
pub const FILES_MAX: usize = 256;
const KINDS: [&str; 16] = [
    "none",
    "identities",
    "handles",
    "access",
    "read-only",
    "remap",
    "rate",
    "quota",
    "machines",
    "alarm",
    "statistics",
    "audit",
    "rbac",
    "module",
    "reorder",
    "replication",
];
/// Kinds that let something be done, or be seen afterwards, less freely: that one is gone is worth a word. `replication` comes and goes with the
/// process alone; the others neither close nor watch anything.
pub const PROTECTING: [&str; 12] = [
    "identities",
    "handles",
    "access",
    "read-only",
    "remap",
    "rate",
    "quota",
    "machines",
    "alarm",
    "audit",
    "rbac",
    "module",
];

/// A file that says that there is no policy.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct NoneFile {}

/// `O_NONBLOCK`: what has no writer is not waited for.
const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits() as i32;

/// One document and where it stands.
#[derive(Clone, Debug)]
struct Document {
    path: PathBuf,
    number: usize,
    kind: String,
    name: String,
    body: Value,
}

impl Document {
    fn wrong(&self, reason: impl std::fmt::Display) -> Error {
        Error::Policy { path: self.path.clone(), document: Some(self.number), reason: reason.to_string() }
    }

    fn body<T: DeserializeOwned>(&self) -> Result<T> {
        weir_document::of(&self.body).map_err(|reason| self.wrong(format!("kind {}: {reason}", self.kind)))
    }
}

/// Reads, checks and compiles a file or folder of policies. `before` is the chain that it will replace.
///
/// # Errors
/// [`Error::Policy`] or [`Error::Io`]; nothing was changed then, except that a key or log file may have been made.
pub fn load(path: &Path, before: Option<&Chain>) -> Result<Chain> {
    read_chain(path, true, before)
}

/// Like [`load`], for questions only: keys, states and logs are left alone, so a FileWall may run under the same files.
///
/// # Errors
/// As of [`load`].
pub fn look(path: &Path) -> Result<Chain> {
    read_chain(path, false, None)
}

fn read_chain(path: &Path, keeps: bool, before: Option<&Chain>) -> Result<Chain> {
    let mut documents = Vec::new();
    for file in files(path)? {
        documents.extend(read(&file)?);
    }
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
    let chain = compile(&documents, Home { folder, keeps }, before)?;
    // Servers alone are a beginning; where there were policies, that there are none any more is said.
    let had = before.is_some_and(|before| !before.entries().is_empty());
    let nothing =
        |document: &&Document| document.kind == "identities" || document.kind == "replication" && had;
    let chains = documents.iter().any(|document| !nothing(&document));
    if !chains {
        let reason =
            "there is no policy, which would let everything through; if that is meant, write 'kind: none'";
        return Err(Error::Policy { path: path.to_path_buf(), document: None, reason: reason.to_string() });
    }
    Ok(chain)
}

fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let shown = |error| Error::io(format!("read {}", path.display()), error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(shown)? {
        let file = entry.map_err(shown)?.path();
        if file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
            files.push(file);
        }
    }
    if files.len() > FILES_MAX {
        let reason = format!("{} policy files in one folder; at most {FILES_MAX} are allowed", files.len());
        return Err(Error::Policy { path: path.to_path_buf(), document: None, reason });
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<Document>> {
    let whole = |reason: String| Error::Policy { path: path.to_path_buf(), document: None, reason };
    let mut text = String::new();
    let shown = |error| Error::io(format!("open {}", path.display()), error);
    // Nobody may ever write into what is no file.
    let file = std::fs::File::options().read(true).custom_flags(NONBLOCK).open(path).map_err(shown)?;
    if !file.metadata().map_err(shown)?.is_file() {
        return Err(whole("it is no file; policies are read from files".to_string()));
    }
    file.take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| Error::io(format!("read {}", path.display()), error))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(whole(format!("longer than {FILE_BYTES_MAX} bytes")));
    }
    let values = weir_document::values(&text).map_err(|reason| whole(reason.to_string()))?;
    // A writer that empties a file first may not be done yet.
    if values.last().is_none_or(Value::is_null) || ends_open(&text) {
        let reason = "it ends without a policy; if it is not being written, delete it or what stands behind the last '---'";
        return Err(whole(reason.to_string()));
    }
    values
        .into_iter()
        .enumerate()
        .filter(|(_, value)| !value.is_null())
        .map(|(number, value)| document(path, number + 1, value))
        .collect()
}

/// True if a text ends behind the beginning of a document, of which a reader of YAML says nothing.
fn ends_open(text: &str) -> bool {
    let says = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    text.lines().rev().find(says).is_some_and(|line| line.trim_end() == "---")
}

fn document(path: &Path, number: usize, value: Value) -> Result<Document> {
    let wrong = |reason: String| Error::Policy { path: path.to_path_buf(), document: Some(number), reason };
    let Value::Object(mut body) = value else {
        return Err(wrong("a policy is a mapping that begins with 'kind:'".to_string()));
    };
    let word = |body: &mut Map<String, Value>, key: &str| match body.remove(key) {
        None => Ok(None),
        Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
        Some(other) => Err(wrong(format!("'{key}: {other}' is no text; in quotes it would be one"))),
    };
    let kind = word(&mut body, "kind")?;
    let kind = kind.ok_or_else(|| wrong(format!("'kind' is missing; there are {}", KINDS.join(", "))))?;
    let name = word(&mut body, "name")?.unwrap_or_else(|| kind.clone());
    Ok(Document { path: path.to_path_buf(), number, kind, name, body: Value::Object(body) })
}

fn compile(documents: &[Document], home: Home<'_>, before: Option<&Chain>) -> Result<Chain> {
    let mut identities = Identities::default();
    let mut named: Option<&Document> = None;
    for document in documents.iter().filter(|document| document.kind == "identities") {
        if named.replace(document).is_some() {
            return Err(document.wrong("identities are given twice; write them in one document"));
        }
        let file: IdentitiesFile = document.body()?;
        identities = Identities::compile(&file).map_err(|reason| document.wrong(reason))?;
    }
    let mut servers = None;
    for document in documents.iter().filter(|document| document.kind == "replication") {
        let compiled = Servers::compile(&document.body::<ReplicationFile>()?);
        if servers.replace(compiled.map_err(|reason| document.wrong(reason))?).is_some() {
            return Err(document.wrong("replication is given twice; write it in one document"));
        }
    }
    let policies: Vec<&Document> = documents
        .iter()
        .filter(|document| !["identities", "replication", "none"].contains(&&*document.kind))
        .collect();
    for document in documents.iter().filter(|document| document.kind == "none") {
        if let Some(other) = policies.first() {
            return Err(
                document.wrong(format!("'none' says that there is no policy, but there is '{}'", other.name))
            );
        }
        document.body::<NoneFile>()?;
    }
    if let Some(document) = policies.get(POLICIES_MAX) {
        return Err(document.wrong(format!("more than {POLICIES_MAX} policies in a chain")));
    }
    let mut zones = Zones::default();
    let mut entries: Vec<Entry> = Vec::new();
    for document in policies {
        if entries.iter().any(|entry| entry.name == document.name) {
            return Err(document
                .wrong(format!("a second policy with the name '{}'; give each its own", document.name)));
        }
        let old = before.and_then(|chain| chain.entries().iter().find(|entry| entry.name == document.name));
        let old = old.filter(|entry| entry.policy.kind() == document.kind);
        let policy = policy(document, home, &identities, &mut zones, old)?;
        if policy.kind() == "rbac" && entries.iter().any(|entry| entry.policy.kind() == "rbac") {
            return Err(document.wrong("'rbac' is there already; one policy of this kind has all rules"));
        }
        if policy.kind() == "handles" && entries.iter().any(|entry| entry.policy.kind() == "handles") {
            return Err(document.wrong("'handles' is there already; a handle is sealed once"));
        }
        if policy.kind() == "handles" && entries.iter().any(|entry| entry.policy.needs_handles()) {
            return Err(document.wrong(
                "a policy before this one looks at paths, which only the server's handles tell: put 'handles' first",
            ));
        }
        entries.push(Entry::new(document.name.clone(), policy, old.map(|entry| entry.counters.clone())));
    }
    Ok(Chain::new(entries, identities, zones, before).with_servers(servers))
}

fn policy(
    document: &Document,
    home: Home<'_>,
    identities: &Identities,
    zones: &mut Zones,
    old: Option<&Entry>,
) -> Result<Box<dyn Policy>> {
    let wrong = |reason: PolicyError| document.wrong(reason);
    let dynamic = || old.and_then(|entry| entry.policy.dynamic());
    Ok(match document.kind.as_str() {
        "handles" => Box::new(Handles::compile(&document.body::<HandlesFile>()?, home).map_err(wrong)?),
        "access" => {
            Box::new(Access::compile(&document.body::<AccessFile>()?, identities, zones).map_err(wrong)?)
        }
        "read-only" => Box::new(Freeze::compile(&document.body::<FreezeFile>()?, zones).map_err(wrong)?),
        "remap" => Box::new(Remap::compile(&document.body::<RemapFile>()?).map_err(wrong)?),
        "rate" => Box::new(Rate::compile(&document.body::<RateFile>()?, dynamic()).map_err(wrong)?),
        "quota" => Box::new(Quota::compile(&document.body::<QuotaFile>()?, home, dynamic()).map_err(wrong)?),
        "machines" => {
            Box::new(Machines::compile(&document.body::<MachinesFile>()?, dynamic()).map_err(wrong)?)
        }
        "alarm" => Box::new(Alarm::compile(&document.body::<AlarmFile>()?, dynamic()).map_err(wrong)?),
        "rbac" => Box::new(
            Rbac::compile(&document.body::<RbacFile>()?, home, identities, zones, dynamic())
                .map_err(wrong)?,
        ),
        "module" => Box::new(
            ModulePolicy::compile(&document.body::<ModuleFile>()?, home.folder, dynamic()).map_err(wrong)?,
        ),
        "reorder" => Box::new(Reorder::compile(&document.body::<ReorderFile>()?).map_err(wrong)?),
        "statistics" => {
            document.body::<StatisticsFile>()?;
            Box::new(Statistics)
        }
        "audit" => {
            Box::new(Audit::compile(&document.body::<AuditFile>()?, home, zones, dynamic()).map_err(wrong)?)
        }
        other => {
            return Err(document.wrong(format!("'{other}' is no kind; there are {}", KINDS.join(", "))));
        }
    })
}

#[cfg(test)]
mod tests;
