//! ONC RPC version 2 (RFC 5531): record marks, the heads of calls and replies, and replies that need no server.

use super::xdr::{Read, Reader, Span, Wrong, put_u32};

/// Highest bit of a record mark: this fragment is the record's last.
pub const LAST_FRAGMENT: u32 = 1 << 31;
/// Longest body of a credential or verifier, bytes (RFC 5531, 8.2).
pub const AUTH_BYTES_MAX: usize = 400;
/// Longest machine name in AUTH_SYS, bytes.
pub const MACHINE_BYTES_MAX: usize = 255;
/// Most further groups in AUTH_SYS.
pub const GROUPS_MAX: usize = 16;

/// Program numbers.
pub mod program {
    /// PORTMAP and rpcbind.
    pub const PORTMAP: u32 = 100_000;
    /// NFS.
    pub const NFS: u32 = 100_003;
    /// MOUNT.
    pub const MOUNT: u32 = 100_005;
}

/// Authentication flavours.
pub mod flavor {
    /// Nobody.
    pub const NONE: u32 = 0;
    /// Numbers that the client states.
    pub const SYS: u32 = 1;
    /// Kerberos and others.
    pub const GSS: u32 = 6;
}

/// A fragment's length and whether it is the last of its record.
pub fn record_mark(word: u32) -> (usize, bool) {
    let bytes = usize::try_from(word & !LAST_FRAGMENT).unwrap_or(usize::MAX);
    (bytes, word & LAST_FRAGMENT != 0)
}

/// The record mark of a record of one fragment; `bytes` is below 2 GiB, as all our records are.
pub fn mark_of(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(0) | LAST_FRAGMENT
}

/// AUTH_SYS credentials: who the client says is calling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sys {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Where `uid` stands in the record; `gid` follows.
    pub uid_at: usize,
    /// Further groups, the first `group_count` are valid.
    pub groups: [u32; GROUPS_MAX],
    /// Number of further groups; they begin 12 bytes behind `uid_at`.
    pub group_count: usize,
    /// Name that the client gives itself.
    pub machine: Span,
    /// From the machine's name to the last group: the same bytes mean the same caller.
    pub identity: Span,
}

impl Sys {
    /// The further groups.
    pub fn groups(&self) -> &[u32] {
        &self.groups[..self.group_count]
    }
}

/// Credentials of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    Sys(Sys),
    /// Another flavour, whose body we do not know.
    Other(u32),
}

/// Head of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallHead {
    /// The caller's transaction number.
    pub xid: u32,
    /// Program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// Its procedure.
    pub procedure: u32,
    /// Who calls.
    pub credential: Credential,
    /// Where the arguments begin.
    pub arguments_at: usize,
}

/// Reads the head of a call.
///
/// # Errors
/// [`Wrong`]. A version of RPC other than 2, or a message that is no call, is [`Wrong::Value`].
pub fn call_head(reader: &mut Reader<'_>) -> Read<CallHead> {
    let xid = reader.u32()?;
    let kind_at = reader.at();
    let kind = reader.u32()?;
    if kind != 0 {
        return Err(Wrong::Value { at: kind_at, value: kind });
    }
    let version_at = reader.at();
    let rpc_version = reader.u32()?;
    if rpc_version != 2 {
        return Err(Wrong::Value { at: version_at, value: rpc_version });
    }
    let (program, version, procedure) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let credential = credential(reader)?;
    let _verifier_flavor = reader.u32()?;
    reader.opaque(AUTH_BYTES_MAX)?;
    Ok(CallHead { xid, program, version, procedure, credential, arguments_at: reader.at() })
}

fn credential(reader: &mut Reader<'_>) -> Read<Credential> {
    let flavor = reader.u32()?;
    if flavor != flavor::SYS {
        reader.opaque(AUTH_BYTES_MAX)?;
        return Ok(if flavor == flavor::NONE { Credential::None } else { Credential::Other(flavor) });
    }
    let bytes = reader.length(AUTH_BYTES_MAX)?;
    let begin = reader.at();
    let _stamp = reader.u32()?;
    let identity_at = reader.at();
    let machine = reader.opaque(MACHINE_BYTES_MAX)?;
    let uid_at = reader.at();
    let (uid, gid) = (reader.u32()?, reader.u32()?);
    let group_count = reader.length(GROUPS_MAX)?;
    let mut groups = [0; GROUPS_MAX];
    for group in &mut groups[..group_count] {
        *group = reader.u32()?;
    }
    let read = reader.at() - begin;
    if read != bytes {
        return Err(Wrong::Long { at: begin, bytes: read, limit: bytes });
    }
    let identity = Span { start: identity_at, bytes: reader.at() - identity_at };
    Ok(Credential::Sys(Sys { uid, gid, uid_at, groups, group_count, machine, identity }))
}

/// Head of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHead {
    /// Transaction number of the call.
    pub xid: u32,
    /// Where the results begin; `None` when the call was not carried out (denied, or not accepted with success).
    pub results_at: Option<usize>,
}

/// Reads the head of a reply.
///
/// # Errors
/// [`Wrong`]. A message that is no reply is [`Wrong::Value`].
pub fn reply_head(reader: &mut Reader<'_>) -> Read<ReplyHead> {
    let xid = reader.u32()?;
    let kind_at = reader.at();
    let kind = reader.u32()?;
    if kind != 1 {
        return Err(Wrong::Value { at: kind_at, value: kind });
    }
    if reader.one_of(1)? == 1 {
        denied_rest(reader)?;
        return Ok(ReplyHead { xid, results_at: None });
    }
    let _verifier_flavor = reader.u32()?;
    reader.opaque(AUTH_BYTES_MAX)?;
    match reader.one_of(5)? {
        0 => Ok(ReplyHead { xid, results_at: Some(reader.at()) }),
        2 => {
            reader.take(8)?;
            reader.end()?;
            Ok(ReplyHead { xid, results_at: None })
        }
        _ => {
            reader.end()?;
            Ok(ReplyHead { xid, results_at: None })
        }
    }
}

fn denied_rest(reader: &mut Reader<'_>) -> Read<()> {
    match reader.one_of(1)? {
        0 => reader.take(8).map(|_| ())?,
        _ => reader.u32().map(|_| ())?,
    }
    reader.end()
}

/// Why a call is not carried out, said in terms of RPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No such program here.
    ProgramUnavailable,
    /// The program has other versions only.
    VersionMismatch {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    },
    /// The program has no such procedure.
    ProcedureUnavailable,
    /// The arguments cannot be decoded.
    GarbageArguments,
    /// Something failed here.
    SystemError,
    /// Another version of RPC.
    RpcMismatch,
    /// The credentials are refused.
    BadCredential,
    /// The flavour of the credentials is not taken here.
    CredentialTooWeak,
}

/// Appends the record mark and head of a reply that was accepted with success; `results_bytes` will follow.
pub fn put_success(out: &mut Vec<u8>, xid: u32, results_bytes: usize) {
    put_u32(out, mark_of(24 + results_bytes));
    for word in [xid, 1, 0, flavor::NONE, 0, 0] {
        put_u32(out, word);
    }
}

/// Appends a whole record that refuses call `xid`.
pub fn put_refusal(out: &mut Vec<u8>, xid: u32, refusal: Refusal) {
    let accepted = |status| vec![xid, 1, 0, flavor::NONE, 0, status];
    let words = match refusal {
        Refusal::ProgramUnavailable => accepted(1),
        Refusal::VersionMismatch { low, high } => {
            let mut words = accepted(2);
            words.extend([low, high]);
            words
        }
        Refusal::ProcedureUnavailable => accepted(3),
        Refusal::GarbageArguments => accepted(4),
        Refusal::SystemError => accepted(5),
        Refusal::RpcMismatch => vec![xid, 1, 1, 0, 2, 2],
        Refusal::BadCredential => vec![xid, 1, 1, 1, 1],
        Refusal::CredentialTooWeak => vec![xid, 1, 1, 1, 5],
    };
    put_u32(out, mark_of(words.len() * 4));
    for word in words {
        put_u32(out, word);
    }
}
