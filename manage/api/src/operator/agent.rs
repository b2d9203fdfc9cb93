//! An operator's key in an ssh agent: the secret never is in a file of this machine, nor in this process (row R1).
//!
//! Two requests of the agent's protocol (draft-ietf-sshm-ssh-agent, sections 3.5 and 3.6) over the socket that `SSH_AUTH_SOCK` names: which keys it has,
//! and sign this. A signature of an `ssh-ed25519` key is a plain ed25519 signature over the bytes that are given, so whoever checks it sees no difference.
//! Keys that sign something else than the bytes (`sk-ssh-ed25519@openssh.com`, of security keys) are not taken.
//!
//! No library: the two messages are all that is needed, and what the agent answers is bounded and checked here; the signature is verified
//! before it is used.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const REQUEST_IDENTITIES: u8 = 11;
const IDENTITIES_ANSWER: u8 = 12;
const SIGN_REQUEST: u8 = 13;
const SIGN_RESPONSE: u8 = 14;
/// Largest message of an agent that is read, bytes: that of OpenSSH's.
const MESSAGE_BYTES_MAX: u32 = 256 * 1024;
/// Most keys of an agent that are looked at.
const KEYS_MAX: u32 = 1_024;
/// How long an agent may take: it may ask a person.
const PATIENCE: Duration = Duration::from_secs(60);
/// The kind of key that is taken.
const KIND: &[u8] = b"ssh-ed25519";
/// Names the socket of the agent.
const VARIABLE: &str = "SSH_AUTH_SOCK";

/// An ed25519 key of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentKey {
    /// The public key.
    pub public: [u8; 32],
    /// What the agent calls it.
    pub comment: String,
}

fn odd(what: &str) -> String {
    format!("the ssh agent's answer cannot be read: {what}")
}

fn put(message: &mut Vec<u8>, bytes: &[u8]) {
    message.extend((bytes.len() as u32).to_be_bytes());
    message.extend(bytes);
}

/// Takes a number off the front.
fn number(message: &mut &[u8]) -> Result<u32, String> {
    let (head, rest) = message.split_first_chunk::<4>().ok_or_else(|| odd("it is cut off"))?;
    *message = rest;
    Ok(u32::from_be_bytes(*head))
}

/// Takes a string off the front.
fn string<'a>(message: &mut &'a [u8]) -> Result<&'a [u8], String> {
    let length = number(message)? as usize;
    let (string, rest) = message.split_at_checked(length).ok_or_else(|| odd("it is cut off"))?;
    *message = rest;
    Ok(string)
}

fn blob(public: &[u8; 32]) -> Vec<u8> {
    let mut blob = Vec::new();
    put(&mut blob, KIND);
    put(&mut blob, public);
    blob
}

/// The public key in a blob, if it is one of ours.
fn of_blob(mut blob: &[u8]) -> Option<[u8; 32]> {
    let kind = string(&mut blob).ok()?;
    let public = string(&mut blob).ok()?;
    (kind == KIND && blob.is_empty()).then(|| public.try_into().ok()).flatten()
}

/// Asks an agent; what it answers, without the kind that is wanted.
fn ask(socket: &Path, message: &[u8], wanted: u8) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| {
        format!(
            "the ssh agent at {} does not answer: {error}; is it running ('ssh-add -l')?",
            socket.display()
        )
    };
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    let mut framed = Vec::new();
    put(&mut framed, message);
    stream.write_all(&framed).map_err(failed)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length).map_err(failed)?;
    let length = u32::from_be_bytes(length);
    if length == 0 || length > MESSAGE_BYTES_MAX {
        return Err(odd(&format!("it has {length} bytes, 1 to {MESSAGE_BYTES_MAX} are taken")));
    }
    let mut answer = vec![0; length as usize];
    stream.read_exact(&mut answer).map_err(failed)?;
    match answer.split_first() {
        Some((kind, rest)) if *kind == wanted => Ok(rest.to_vec()),
        _ => Err("the ssh agent refuses: the key is not there ('ssh-add -l'), the agent is locked, or somebody said no".to_owned()),
    }
}

/// The socket of this process's agent.
///
/// # Errors
/// No variable names one.
pub fn socket() -> Result<std::path::PathBuf, String> {
    std::env::var_os(VARIABLE).map(Into::into).ok_or_else(|| {
        format!("the operator's key is in an ssh agent, and {VARIABLE} names none: start one ('ssh-agent'), or forward yours ('ssh -A')")
    })
}

/// The ed25519 keys of an agent.
///
/// # Errors
/// It does not answer, or not as agents do.
pub fn keys(socket: &Path) -> Result<Vec<AgentKey>, String> {
    let answer = ask(socket, &[REQUEST_IDENTITIES], IDENTITIES_ANSWER)?;
    let mut rest = &answer[..];
    let count = number(&mut rest)?;
    if count > KEYS_MAX {
        return Err(odd(&format!("it has {count} keys: at most {KEYS_MAX} are looked at")));
    }
    let mut keys = Vec::new();
    for _ in 0..count {
        let (blob, comment) = (string(&mut rest)?, string(&mut rest)?);
        if let Some(public) = of_blob(blob) {
            keys.push(AgentKey { public, comment: String::from_utf8_lossy(comment).into_owned() });
        }
    }
    Ok(keys)
}

/// Has an agent sign bytes with one of its keys: the 64 bytes of the signature, which nobody has checked yet.
///
/// # Errors
/// It does not answer, has not the key, or says no.
pub fn sign(socket: &Path, public: &[u8; 32], bytes: &[u8]) -> Result<[u8; 64], String> {
    let mut message = vec![SIGN_REQUEST];
    put(&mut message, &blob(public));
    put(&mut message, bytes);
    message.extend(0_u32.to_be_bytes());
    let answer = ask(socket, &message, SIGN_RESPONSE)?;
    let mut rest = &answer[..];
    let mut signature = string(&mut rest)?;
    if string(&mut signature)? != KIND {
        return Err(odd("it is no signature of an ed25519 key"));
    }
    string(&mut signature)?.try_into().map_err(|_| odd("it is no signature of an ed25519 key"))
}

#[cfg(test)]
mod tests;
