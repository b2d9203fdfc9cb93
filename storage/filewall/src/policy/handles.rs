//! `kind: handles`: virtual file handles, one set for each client (paper 4.2.4, 4.4.2: file handle security).
//!
//! A server's handle tells about the server, and whoever has seen or guessed one may use it. Clients get handles of 64 bytes
//! instead: the server's, encrypted and authenticated with AES-SIV (RFC 5297) under a key of FileWall, with the client's address as
//! associated data. So a handle cannot be made, changed, or used from another machine: it is then answered with
//! `NFS3ERR_BADHANDLE`, and the server never sees it.
//!
//! ```text
//! 0              16                                                      64
//! │ SIV (tag)    │ AES-CTR( length u8 │ full length u8 │ server's handle, padded with 0 ) │
//! ```
//!
//! Zeros at the end of a server's handle are not written, for servers of NFSv4 pad theirs to 128 bytes; the first length is
//! that without them. Its highest bit marks handles of NFSv4 above the export (see [`crate::proxy`]), so that they lead nowhere else
//! even when nothing is remembered of them.
//!
//! Invariants
//! - The same server handle gives the same handle for a client, always, also after a restart and on another FileWall with the
//!   same key: clients compare handles to know a file again.
//! - No state is kept for a handle that could be lost; [`memo`] only saves time.
//!
//! Departure: the paper draws handles at random and keeps two persistent maps. Ours need none, so there is nothing to lose, to
//! bound or to hand over. The price: a server's handle must have at most 46 bytes that are not zeros at its
//! end, as those of nfs-ganesha's VFS have.

pub mod memo;

use super::error::PolicyError;
use super::explain::{Question, Step};
use super::home::Home;
use super::{Context, Mount, OpenHandle, Policy, Verdict};
use crate::message::{Asked, Call, Reply};
use crate::wire::nfs3::{ALL_OPS, HANDLE_BYTES_MAX, HANDLE4_BYTES_MAX, Handle, Op, Status};
use aes_siv::KeyInit;
use aes_siv::siv::Aes128Siv;
use memo::{Inner, Memo, Sealed, Under};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use zeroize::Zeroizing;

/// Length of a key, bytes.
pub const KEY_BYTES: usize = 32;
/// Longest handle of a server, without zeros at its end, bytes.
pub const SERVER_HANDLE_BYTES_MAX: usize = HANDLE_BYTES_MAX - TAG_BYTES - 2;
const TAG_BYTES: usize = 16;
/// Where the server's handle begins, behind its lengths.
const BODY: usize = TAG_BYTES + 2;
/// What a client gets in place of a handle that cannot be sealed.
static BLANK: Sealed = [0; HANDLE_BYTES_MAX];
/// Bit of the length that marks a folder of NFSv4 above the export.
const ABOVE: u8 = 1 << 7;
/// `maxcount` of READDIRPLUS below which it is left as it is, bytes.
const MAXCOUNT_MIN: u32 = 1024;

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct HandlesFile {
    /// File with the key, made with mode 0600 if it is not there. A relative path begins at the folder of policies.
    pub key_file: PathBuf,
    /// What a handle is bound to.
    #[serde(default)]
    pub bind: Bind,
}

/// What a handle is bound to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bind {
    /// The client's address: another machine cannot use it.
    #[default]
    Client,
    /// Nothing: for clients whose address changes.
    Nothing,
}

/// Next number of a policy.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The policy.
#[derive(Debug)]
pub struct Handles {
    /// A number that no other policy of this process has.
    number: u64,
    cipher: CipherBox,
    bind: Bind,
    refused: AtomicU64,
    too_long: AtomicU64,
}

/// The cipher with its expanded key, which must not be printed.
struct CipherBox(Mutex<Aes128Siv>);

impl std::fmt::Debug for CipherBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cipher")
    }
}

impl Handles {
    /// Checks a file; reads or makes the key. For questions a key is not needed.
    ///
    /// # Errors
    /// What is wrong.
    pub fn compile(file: &HandlesFile, home: Home<'_>) -> Result<Handles, PolicyError> {
        let path = home.folder.join(&file.key_file);
        let key = if home.keeps { load_key(&path)? } else { no_key(&path)? };
        Ok(Handles::new(&key, file.bind))
    }

    /// With a key.
    pub fn new(key: &[u8; KEY_BYTES], bind: Bind) -> Handles {
        let cipher = Aes128Siv::new(key.into());
        Handles {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            cipher: CipherBox(Mutex::new(cipher)),
            bind,
            refused: AtomicU64::new(0),
            too_long: AtomicU64::new(0),
        }
    }

    fn bound_to(&self, address: IpAddr) -> [u8; 16] {
        match (self.bind, address) {
            (Bind::Nothing, _) => [0; 16],
            (Bind::Client, IpAddr::V4(address)) => address.to_ipv6_mapped().octets(),
            (Bind::Client, IpAddr::V6(address)) => address.octets(),
        }
    }

    fn under(&self, address: IpAddr) -> Under {
        Under { policy: self.number, bound: self.bound_to(address) }
    }

    /// The client's handle for a server's; `None` if that is too long.
    pub fn seal(&self, server: &[u8], address: IpAddr) -> Option<Handle> {
        memo::with(|memo| Handle::new(self.seal_with(memo, &self.under(address), server, false)?))
    }

    #[inline]
    fn seal_with<'m>(
        &self,
        memo: &'m mut Memo,
        under: &Under,
        server: &[u8],
        above: bool,
    ) -> Option<&'m Sealed> {
        let inner = Inner::new(server, above)?;
        memo.seal(under, inner, || self.encrypt(inner, under.bound))
    }

    fn encrypt(&self, inner: Inner<'_>, bound: [u8; 16]) -> Option<Sealed> {
        let mut bytes = [0; HANDLE_BYTES_MAX];
        let used = inner.used.len();
        bytes.get_mut(BODY..BODY + used)?.copy_from_slice(inner.used);
        let length = u8::try_from(used).ok()?;
        bytes[TAG_BYTES] = if inner.above { length | ABOVE } else { length };
        bytes[TAG_BYTES + 1] = inner.length;
        let mut cipher = self.cipher.0.lock().unwrap_or_else(PoisonError::into_inner);
        let tag = cipher.encrypt_inout_detached([bound], (&mut bytes[TAG_BYTES..]).into()).ok()?;
        bytes[..TAG_BYTES].copy_from_slice(&tag);
        Some(bytes)
    }

    /// The server's handle of a client's; `None` if it was not made here for this client, or leads out of the export.
    pub fn open(&self, client: &[u8], address: IpAddr) -> Option<Handle> {
        self.open_marked(client, address).filter(|open| !open.above).map(|open| open.handle)
    }

    fn open_marked(&self, client: &[u8], address: IpAddr) -> Option<OpenHandle> {
        let bytes: &Sealed = client.try_into().ok()?;
        let under = self.under(address);
        memo::with(|memo| memo.open(&under, bytes, || self.decrypt(*bytes, under.bound)))
    }

    fn decrypt(&self, mut bytes: Sealed, bound: [u8; 16]) -> Option<OpenHandle> {
        let (tag, body) = bytes.split_at_mut(TAG_BYTES);
        let tag: [u8; TAG_BYTES] = (&*tag).try_into().ok()?;
        let mut cipher = self.cipher.0.lock().unwrap_or_else(PoisonError::into_inner);
        cipher.decrypt_inout_detached([bound], body.into(), &tag.into()).ok()?;
        let mut server = [0; HANDLE4_BYTES_MAX];
        let used = body.get(2..2 + usize::from(body[0] & !ABOVE))?;
        server.get_mut(..used.len())?.copy_from_slice(used);
        let handle = Handle::new(server.get(..usize::from(body[1]))?)?;
        Some(OpenHandle { handle, above: body[0] & ABOVE != 0 })
    }

    /// Seals; a handle that cannot be replaced is blanked and counted: the server's must not get out.
    #[inline]
    fn seal_or_blank<'m>(&self, memo: &'m mut Memo, under: &Under, server: &[u8], above: bool) -> &'m Sealed {
        self.seal_with(memo, under, server, above).unwrap_or_else(|| {
            self.blanked(server.len());
            &BLANK
        })
    }

    #[cold]
    fn blanked(&self, bytes: usize) {
        if self.too_long.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::error!(
                bytes,
                "the server's handles are longer than {SERVER_HANDLE_BYTES_MAX} bytes: take the policy of kind 'handles' out"
            );
        }
    }

    fn seal_one(&self, server: &[u8], address: IpAddr, above: bool) -> Handle {
        let under = self.under(address);
        let sealed = |memo: &mut Memo| Handle::new(self.seal_or_blank(memo, &under, server, above));
        memo::with(sealed).unwrap_or(Handle::EMPTY)
    }
}

/// What the server is asked for where a client asks for a listing of so many bytes. An odd number makes nfs-ganesha 4.3
/// fail with NFS3ERR_SERVERFAULT where an entry just does not fit, so it is a multiple of 512.
fn less_than(asked: u32) -> u32 {
    if asked <= MAXCOUNT_MIN { asked } else { ((asked - asked / 5) & !511).max(MAXCOUNT_MIN) }
}

/// For questions no key is needed; a file that would be refused is.
fn no_key(path: &Path) -> Result<Zeroizing<[u8; KEY_BYTES]>, PolicyError> {
    match std::fs::metadata(path) {
        Ok(file) if file.len() < KEY_BYTES as u64 => Err(too_short(path)),
        _ => Ok(Zeroizing::new([0; KEY_BYTES])),
    }
}

fn too_short(path: &Path) -> PolicyError {
    PolicyError::ShortKey { path: path.to_path_buf(), bytes: KEY_BYTES }
}

fn load_key(path: &Path) -> Result<Zeroizing<[u8; KEY_BYTES]>, PolicyError> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    match std::fs::File::open(path) {
        Ok(mut file) => {
            file.read_exact(key.as_mut_slice()).map_err(|_| too_short(path))?;
            Ok(key)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            getrandom::fill(key.as_mut_slice()).map_err(PolicyError::Random)?;
            let mut options = std::fs::OpenOptions::new();
            let made = options.write(true).create_new(true).mode(0o600).open(path);
            made.and_then(|mut file| file.write_all(key.as_slice()).and_then(|()| file.sync_all()))
                .map_err(PolicyError::file("key file", path))?;
            Ok(key)
        }
        Err(error) => Err(PolicyError::file("key file", path)(error)),
    }
}

impl Policy for Handles {
    fn kind(&self) -> &'static str {
        "handles"
    }

    fn ops(&self) -> u32 {
        ALL_OPS & !Op::Null.bit()
    }

    fn request(&self, call: &mut Call<'_>, _context: &Context<'_>) -> Verdict {
        for number in 0..call.arguments.handle_count {
            match self.open(call.handle(number), call.caller.address) {
                Some(handle) => call.set_handle(number, handle),
                None => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    return Verdict::Answer(Status::BadHandle);
                }
            }
        }
        // Our handles are longer than the server's: ask for less, so that less must be cut from the answer.
        if let Some(at) = call.arguments.maxcount_at {
            let less = less_than(call.word(at));
            call.set_word(at, less);
            // `dircount` stands before it, and servers fail a call in which it is the larger one.
            call.set_word(at - 4, call.word(at - 4).min(less));
        }
        Verdict::Forward
    }

    fn reply(&self, asked: &Asked, reply: &mut Reply<'_>, _latency_us: u64, _context: &Context<'_>) {
        let address = asked.caller.address;
        if let Some(handle) = reply.handle() {
            match self.seal(handle, address) {
                Some(sealed) => reply.set_handle(sealed),
                // A handle of nothing would be taken for that of something.
                None => {
                    self.blanked(handle.len());
                    reply.failed = Some(Status::ServerFault);
                }
            }
        }
        if let Some(extra) = &mut reply.extra {
            extra.handle = self.seal_one(extra.handle.as_bytes(), address, false);
        }
        if reply.results.entries.is_empty() {
            return;
        }
        let under = self.under(address);
        memo::with(|memo| {
            reply.map_entry_handles(|server, out| {
                out.extend_from_slice(self.seal_or_blank(memo, &under, server, false));
            });
        });
    }

    fn open_handle(&self, handle: OpenHandle, client: IpAddr) -> Result<OpenHandle, Status> {
        self.open_marked(handle.handle.as_bytes(), client).ok_or_else(|| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            Status::BadHandle
        })
    }

    fn seal_handle(&self, open: OpenHandle, client: IpAddr) -> Handle {
        self.seal_one(open.handle.as_bytes(), client, open.above)
    }

    fn mounted(&self, mount: &Mount, handle: &mut Handle) {
        *handle = self.seal(handle.as_bytes(), mount.caller.address).unwrap_or_else(|| {
            self.blanked(handle.as_bytes().len());
            Handle::EMPTY
        });
    }

    fn details(&self) -> BTreeMap<String, u64> {
        [
            ("forged".to_string(), self.refused.load(Ordering::Relaxed)),
            ("server_handles_too_long".to_string(), self.too_long.load(Ordering::Relaxed)),
        ]
        .into()
    }

    fn explain(&self, _question: &Question, _context: &Context<'_>) -> Step {
        Step::forward("a handle that this client got from here is replaced by the server's")
    }
}

#[cfg(test)]
mod tests;
