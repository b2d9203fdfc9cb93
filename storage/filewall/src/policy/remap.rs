//! `kind: remap`: the numbers of users and groups that clients see and those that the server has (paper 4.2.3: attribute
//! remapping); and bits of the mode that clients may not set.
//!
//! Credentials and attributes that are set are mapped on the way to the server, attributes that are shown on the way back.

use super::error::PolicyError;
use super::explain::{Question, Step};
use super::{Context, Policy, Verdict};
use crate::message::{Asked, Call, Reply};
use crate::wire::nfs3::{ALL_OPS, Op};
use crate::wire::rpc::Credential;
use crate::wire::xdr::{get_u32, set_u32};
use hashbrown::HashMap;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Most pairs of one policy.
pub const PAIRS_MAX: usize = 65_536;
/// Bits of a mode that exist.
const MODE_BITS: u32 = 0o7777;

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RemapFile {
    /// Users: number at clients to number at the server.
    #[serde(default)]
    pub users: BTreeMap<u32, u32>,
    /// Groups: number at clients to number at the server.
    #[serde(default)]
    pub groups: BTreeMap<u32, u32>,
    /// What users and groups become that are not listed: themselves, or this number.
    #[serde(default)]
    pub others: Option<u32>,
    /// Bits of the mode that are taken out when a client sets it, as an octal number in quotes: `"6002"`.
    #[serde(default)]
    pub clear_mode: Option<String>,
}

#[derive(Debug, Default)]
struct Map {
    to_server: HashMap<u32, u32, foldhash::fast::RandomState>,
    to_client: HashMap<u32, u32, foldhash::fast::RandomState>,
    others: Option<u32>,
}

impl Map {
    fn compile(
        pairs: &BTreeMap<u32, u32>,
        others: Option<u32>,
        what: &'static str,
    ) -> Result<Map, PolicyError> {
        if pairs.len() > PAIRS_MAX {
            return Err(PolicyError::TooMany { count: pairs.len(), what, most: PAIRS_MAX });
        }
        let mut map = Map { others, ..Map::default() };
        for (client, server) in pairs {
            map.to_server.insert(*client, *server);
            // Several clients' numbers may become one of the server's; the lowest is shown.
            map.to_client.entry(*server).or_insert(*client);
        }
        Ok(map)
    }

    fn server(&self, number: u32) -> u32 {
        self.to_server.get(&number).copied().unwrap_or(self.others.unwrap_or(number))
    }

    fn client(&self, number: u32) -> u32 {
        self.to_client.get(&number).copied().unwrap_or(number)
    }
}

/// The policy.
#[derive(Debug)]
pub struct Remap {
    users: Map,
    groups: Map,
    mode_mask: u32,
}

impl Remap {
    /// Checks and compiles a file.
    ///
    /// # Errors
    /// What is wrong.
    pub fn compile(file: &RemapFile) -> Result<Remap, PolicyError> {
        let clear = match &file.clear_mode {
            None => 0,
            Some(text) => {
                let bits = u32::from_str_radix(text, 8).ok().filter(|bits| bits & !MODE_BITS == 0);
                bits.ok_or_else(|| PolicyError::Mode(text.clone()))?
            }
        };
        Ok(Remap {
            users: Map::compile(&file.users, file.others, "users")?,
            groups: Map::compile(&file.groups, file.others, "groups")?,
            mode_mask: !clear,
        })
    }
}

impl Policy for Remap {
    fn kind(&self) -> &'static str {
        "remap"
    }

    fn serves_nfs4(&self) -> bool {
        // Owners are texts there, and modes lie among attributes of any length.
        false
    }

    fn ops(&self) -> u32 {
        ALL_OPS & !Op::Null.bit()
    }

    fn request(&self, call: &mut Call<'_>, _context: &Context<'_>) -> Verdict {
        if let Credential::Sys(sys) = call.head.credential {
            // What a remapping before this one has made of it, not what the client sent.
            let (uid, gid) = (call.word(sys.uid_at), call.word(sys.uid_at + 4));
            call.set_user(self.users.server(uid), self.groups.server(gid));
            call.map_groups(|group| self.groups.server(group));
        }
        let set = call.arguments.set;
        for (at, map) in [(set.uid_at, &self.users), (set.gid_at, &self.groups)] {
            if let Some(at) = at {
                call.set_word(at, map.server(call.word(at)));
            }
        }
        if let Some(at) = set.mode_at {
            call.set_word(at, call.word(at) & self.mode_mask);
        }
        Verdict::Forward
    }

    fn reply(&self, _asked: &Asked, reply: &mut Reply<'_>, _latency_us: u64, _context: &Context<'_>) {
        reply.each_attributes(|record, at| {
            for (at, map) in [(at + 12, &self.users), (at + 16, &self.groups)] {
                let shown = map.client(get_u32(record, at));
                set_u32(record, at, shown);
            }
        });
    }

    fn explain(&self, question: &Question, _context: &Context<'_>) -> Step {
        let caller = &question.caller;
        let (uid, gid) = (self.users.server(caller.uid), self.groups.server(caller.gid));
        Step::forward(format!("user {} goes on as {uid}, group {} as {gid}", caller.uid, caller.gid))
    }
}

#[cfg(test)]
mod tests;
