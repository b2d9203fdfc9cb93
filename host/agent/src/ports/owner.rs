//! Whose a device is.
//!
//! A device's mark names a network and an endpoint, and agents of two domains on one machine may have both in common. So each agent
//! has a signature of its own, a number that it draws once and keeps in its state directory, and signs what it makes: with another
//! name of the device (`ip link property`), because the mark must stay what the release before looks for.
//!
//! Invariants
//! - A device that another agent signed is never changed, taken or removed; it is told whose it is.
//! - A device has its signature before its mark. So one that has a mark and none is of a release that did not sign; it is this
//!   agent's if that release put it in this agent's list of devices, and is signed when it is taken.
//! - An agent that has lost its state directory is another one: its devices of before are an operator's affair.

use crate::AgentError;
use crate::join;
use std::path::Path;
use weir_model::Label;

/// Name of the file of the signature in the state directory.
pub const OWNER_FILE: &str = "devices.owner";
/// Begins another name of every device that is signed: `weir.<signature>.<index>.<host>.<domain>`.
const PREFIX: &str = "weir.";
/// Digits of a signature.
const DIGITS: usize = 16;
/// Of a host's and of a domain's name so much is told, bytes: the kernel takes 127 for the whole.
const WORD_BYTES_MAX: usize = 40;
/// What is told of a domain that is not known.
const NO_DOMAIN: &str = "-";

/// This agent, as devices know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    signature: String,
    host: String,
    domain: String,
}

/// Whose a device is that has a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// This agent's.
    Ours,
    /// Of a release that did not sign.
    Unsigned,
    /// Another agent's, in words.
    Other(String),
}

impl Owner {
    /// Reads the agent's signature, or draws it.
    ///
    /// # Errors
    /// The file cannot be read or made, or holds something else: another signature would give all devices away.
    pub fn open(state_dir: &Path, host: &Label) -> Result<Owner, AgentError> {
        let path = state_dir.join(OWNER_FILE);
        let signature = match std::fs::read_to_string(&path) {
            Ok(text) => {
                let text = text.trim();
                if text.len() != DIGITS || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                    let reason = format!("it does not hold {DIGITS} hex digits");
                    return Err(AgentError::Material { what: path.display().to_string(), reason });
                }
                text.to_string()
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let drawn = format!("{:016x}", rand::random::<u64>());
                weir_base::file::replace(&path, format!("{drawn}\n").as_bytes(), 0o644)
                    .map_err(|error| AgentError::file(path, error))?;
                drawn
            }
            Err(error) => return Err(AgentError::file(path, error)),
        };
        let domain = join::membership(state_dir)?
            .map_or_else(|| NO_DOMAIN.to_string(), |member| word(member.domain.as_str()));
        Ok(Owner { signature, host: word(host.as_str()), domain })
    }

    /// The name that signs a device. Two devices of a namespace cannot have one name in common, so its index is in it.
    pub fn name(&self, index: u32) -> String {
        format!("{PREFIX}{}.{index}.{}.{}", self.signature, self.host, self.domain)
    }

    /// Whose a device is that has these other names.
    pub fn whose<'a>(&self, names: impl Iterator<Item = &'a str>) -> Whose {
        let mut whose = Whose::Unsigned;
        for name in names {
            let Some(signed) = Signed::read(name) else { continue };
            if signed.signature == self.signature {
                return Whose::Ours;
            }
            whose = Whose::Other(signed.words());
        }
        whose
    }
}

/// At most so much of a name as is told.
fn word(name: &str) -> String {
    name.chars().take(WORD_BYTES_MAX).collect()
}

/// A name that signs.
struct Signed<'a> {
    signature: &'a str,
    host: &'a str,
    domain: &'a str,
}

impl Signed<'_> {
    fn read(name: &str) -> Option<Signed<'_>> {
        let mut parts = name.strip_prefix(PREFIX)?.splitn(4, '.');
        let (signature, _index) = (parts.next()?, parts.next()?);
        let (host, domain) = (parts.next()?, parts.next()?);
        (signature.len() == DIGITS).then_some(Signed { signature, host, domain })
    }

    fn words(&self) -> String {
        let Signed { signature, host, domain } = self;
        match *domain {
            NO_DOMAIN => format!("host '{host}' (signature {signature})"),
            domain => format!("host '{host}' of domain '{domain}' (signature {signature})"),
        }
    }
}

#[cfg(test)]
mod tests;
