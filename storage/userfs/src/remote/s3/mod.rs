//! `s3://BUCKET/PREFIX`: objects of an S3 store as files.
//!
//! The crate `rusty-s3` signs calls and reads answers, `ureq` carries them (why not more: docs/decisions/0021). Keys and the
//! place of the store are what the environment says in Amazon's variables ([`Settings`]).
//!
//! - An object is written as a whole. So the first write to a file brings it here, into a file without a name that others
//!   cannot see; `close` and `fsync` put it up if it was changed, and tell errors. What was not closed or synced is lost with the
//!   daemon. A truncation of a file that is not open is put up at once.
//! - Directories are common beginnings of keys. One that is made here is an empty object whose key ends with `/`; one that would
//!   vanish with its last file here becomes such an object.
//! - Renaming is copying and removing: of directories with at most [`RENAMED_MAX`] objects, else EXDEV, which makes `mv` do it
//!   itself. It is not atomic.
//! - No answer is believed: which bytes of which object came is compared with what was asked (`said`), and a name that lists an object without a
//!   size lists nothing. A file that is open is one object: when another takes its place, reads are errors until it is opened anew.
//! - A key that is an object and the beginning of others is shown as the object.
//! - Files are the mounting user's, with fixed permissions ([`FILE_MODE`]); setting others gives EPERM, as on VFAT. Times are those
//!   of the last upload; setting them is taken and forgotten. There are no links.

mod calls;
mod said;
#[cfg(test)]
mod tests;
mod tries;

use super::runtime::{Fate, PATIENCE};
use super::{Place, Protocol, Remote};
use crate::backend::{Attributes, Inode};
use crate::error::{Errno, Error, Result};
use rusty_s3::actions::ListObjectsV2;
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use said::{Answered, Object, Wanted};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tries::{Clock, Real, Tried, Tries};
use ureq::http::{HeaderMap, Response};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, RequestBuilder, SendBody};

/// Permissions of files; of directories these and the right to search.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;
/// Largest object that one call may put up.
const OBJECT_BYTES_MAX: u64 = 5 << 30;
/// How long a signature holds.
const SIGNED: Duration = Duration::from_secs(600);
/// Objects of a directory that is renamed.
const RENAMED_MAX: usize = 1000;
/// Bytes of an answer that is a text.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Bytes moved at once between the store and a file.
const PIECE_BYTES: usize = 256 * 1024;
/// Where certificates of authorities are, unless `SSL_CERT_FILE` says otherwise.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Where the store is, and as whom it is asked.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`; without it Amazon's.
    pub endpoint: Option<String>,
    /// `AWS_REGION` or `AWS_DEFAULT_REGION`, else `us-east-1`.
    pub region: Option<String>,
    /// `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`; without them calls are not signed.
    pub key: Option<(String, String)>,
    /// `AWS_SESSION_TOKEN`.
    pub token: Option<String>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let key = self.key.as_ref().map(|key| &key.0);
        write!(out, "endpoint {:?}, region {:?}, key {key:?}", self.endpoint, self.region)
    }
}

impl Settings {
    /// As the environment says.
    pub fn from_environment() -> Settings {
        let first = |names: &[&str]| {
            names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
        };
        Settings {
            endpoint: first(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]),
            region: first(&["AWS_REGION", "AWS_DEFAULT_REGION"]),
            key: first(&["AWS_ACCESS_KEY_ID"]).zip(first(&["AWS_SECRET_ACCESS_KEY"])),
            token: first(&["AWS_SESSION_TOKEN"]),
        }
    }

    fn bucket(&self, name: &str) -> std::result::Result<Bucket, String> {
        let region = self.region.clone().unwrap_or_else(|| "us-east-1".to_owned());
        let amazon = format!("https://s3.{region}.amazonaws.com");
        let endpoint = self.endpoint.as_ref().unwrap_or(&amazon);
        // Names with dots are in no certificate, and other stores have one host.
        let path_style = self.endpoint.is_some() || name.contains('.');
        let style = if path_style { UrlStyle::Path } else { UrlStyle::VirtualHost };
        let url = endpoint.parse().map_err(|error| format!("the endpoint '{endpoint}': {error}"))?;
        Bucket::new(url, style, name.to_owned(), region)
            .map_err(|error| format!("bucket '{name}' at {endpoint}: {error}"))
    }
}

/// A file that is here to be written. Whoever has it locked finds one of three: it is to be brought here, it is here, or it is over.
#[derive(Default)]
struct Staged {
    /// Nothing before it is brought here.
    file: Option<File>,
    changed: bool,
    /// Somebody knows that this could not be put up.
    told: bool,
    /// It was put up, or could not be brought, and is not the file's any more: who still has it looks for another.
    over: bool,
}

struct S3 {
    bucket: Bucket,
    credentials: Option<Credentials>,
    agent: Agent,
    /// Beginning of all keys; empty, or with `/` at its end.
    prefix: String,
    owner: (u32, u32),
    begun: SystemTime,
    staged: Mutex<HashMap<Inode, Arc<Mutex<Staged>>>>,
    /// Which object each open file is; nothing until the store said so.
    seen: Mutex<HashMap<Inode, Option<Object>>>,
    tries: Tries,
    fate: Fate,
}

/// Opens what has `prefix` in a bucket; `rest` is what follows `s3:`.
pub(crate) fn open(
    text: &str,
    rest: &str,
    settings: &Settings,
) -> std::result::Result<Remote<impl Protocol>, Error> {
    open_by(text, rest, settings, Box::new(Real::begin()))
}

/// The same, by another clock.
fn open_by(
    text: &str,
    rest: &str,
    settings: &Settings,
    clock: Box<dyn Clock>,
) -> std::result::Result<Remote<S3>, Error> {
    let wrong = |reason: String| Error::Backend { given: text.to_owned(), reason };
    let place = rest.strip_prefix("//").unwrap_or_default();
    let (name, prefix) = place.split_once('/').unwrap_or((place, ""));
    let prefix = prefix.trim_matches('/');
    let plain = |part: &str| !matches!(part, "" | "." | "..");
    if name.is_empty() || !prefix.is_empty() && !prefix.split('/').all(plain) {
        return Err(wrong("give bucket and prefix: s3://bucket/some/prefix, or s3://bucket".to_owned()));
    }
    let credentials = settings.key.as_ref().map(|(key, secret)| match &settings.token {
        Some(token) => Credentials::new_with_token(key, secret, token),
        None => Credentials::new(key, secret),
    });
    let s3 = S3 {
        bucket: settings.bucket(name).map_err(&wrong)?,
        credentials,
        agent: agent(settings).map_err(&wrong)?,
        prefix: if prefix.is_empty() { String::new() } else { format!("{prefix}/") },
        owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
        begun: SystemTime::now(),
        staged: Mutex::default(),
        seen: Mutex::default(),
        tries: Tries::new(clock),
        fate: Fate::default(),
    };
    s3.page(&s3.prefix, 1, None).map_err(|error| {
        let hint = if s3.credentials.is_some() {
            ""
        } else {
            "; AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"
        };
        wrong(format!("listing bucket '{name}' at {}: {error:?}{hint}", s3.bucket.base_url()))
    })?;
    Remote::new(s3).map_err(|error| wrong(format!("{error:?}")))
}

fn agent(settings: &Settings) -> std::result::Result<Agent, String> {
    let mut tls = TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()));
    if settings.endpoint.as_ref().is_none_or(|endpoint| endpoint.starts_with("https:")) {
        let file = std::env::var("SSL_CERT_FILE").unwrap_or_else(|_| AUTHORITIES.to_owned());
        let pem = std::fs::read(&file)
            .map_err(|error| format!("{file}: {error}; install ca-certificates, or set SSL_CERT_FILE"))?;
        let certificates = parse_pem(&pem).filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        });
        tls = tls.root_certs(RootCerts::Specific(Arc::new(certificates.collect())));
    }
    Ok(Agent::config_builder()
        .tls_config(tls.build())
        .http_status_as_error(false)
        .max_redirects(0)
        .timeout_connect(Some(Duration::from_secs(15)))
        .timeout_recv_response(Some(PATIENCE))
        .timeout_per_read(Some(PATIENCE))
        .timeout_per_write(Some(PATIENCE))
        .build()
        .into())
}

/// A call that moves no object, and so is over when its time is. What moves one has a patience of its own for each part.
fn within<B>(call: RequestBuilder<B>, most: Duration) -> RequestBuilder<B> {
    call.config().timeout_per_call(Some(most)).build()
}

fn errno(status: u16) -> Errno {
    match status {
        404 => Errno::NOT_FOUND,
        401 | 403 => Errno(libc::EACCES),
        412 => Errno::EXISTS,
        413 => Errno(libc::EFBIG),
        507 => Errno::NO_SPACE,
        _ => Errno::IO,
    }
}

/// A time as HTTP's headers have it.
fn http_time(headers: &HeaderMap) -> Option<SystemTime> {
    let text = headers.get("last-modified")?.to_str().ok()?;
    jiff::fmt::rfc2822::parse(text).ok().map(|time| SystemTime::from(time.timestamp()))
}

type Answer = Response<Body>;

/// An answer that is not what was asked for.
fn lie(key: &str, reason: &str) -> Errno {
    tracing::warn!("{key}: {reason}");
    Errno::IO
}

impl S3 {
    fn staged(&self) -> MutexGuard<'_, HashMap<Inode, Arc<Mutex<Staged>>>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<Inode, Option<Object>>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a call, which hears how long it may take; again when the store or the way to it has a weak moment: all calls can be repeated.
    fn send(&self, call: impl Fn(Duration) -> std::result::Result<Answer, ureq::Error>) -> Result<Answer> {
        self.tries.run(|most| match call(most) {
            Ok(answer) if answer.status().is_success() => Tried::Done(answer),
            Ok(mut answer) => {
                let status = answer.status().as_u16();
                if !matches!(status, 404 | 412 | 416) {
                    let words = answer.body_mut().with_config().limit(4096).read_to_string();
                    tracing::warn!("the store answers {status}: {}", words.unwrap_or_default());
                }
                match status {
                    416 => Tried::Refused(Errno::NO_SUCH_OFFSET),
                    429 | 500 | 502 | 503 | 504 => Tried::Weak(errno(status)),
                    _ => Tried::Refused(errno(status)),
                }
            }
            Err(error) => {
                tracing::warn!("{}: {error}", self.bucket.base_url());
                self.fate.lost.fetch_add(1, Ordering::Relaxed);
                Tried::Weak(match error {
                    ureq::Error::Timeout(_) => Errno(libc::ETIMEDOUT),
                    _ => Errno::IO,
                })
            }
        })
    }

    fn key(&self, path: &[u8]) -> Result<String> {
        // Keys are text.
        let path = std::str::from_utf8(path).map_err(|_| Errno(libc::EILSEQ))?;
        Ok(format!("{}{path}", self.prefix))
    }

    /// The key of a directory's beginning, with `/` at its end unless it is empty.
    fn folder(&self, path: &[u8]) -> Result<String> {
        let key = self.key(path)?;
        Ok(if path.is_empty() { key } else { format!("{key}/") })
    }

    fn put(&self, key: &str, body: Option<(&File, u64)>, new: bool) -> Result<()> {
        let action = self.bucket.put_object(self.credentials.as_ref(), key);
        self.send(|most| {
            let url = action.sign(SIGNED);
            let mut call = self.agent.put(url.as_str());
            if new {
                call = call.header("if-none-match", "*");
            }
            match body {
                None => within(call, most).send(&[][..]),
                Some((file, bytes)) => {
                    let mut reader = At { file, offset: 0, end: bytes };
                    call.header("content-length", bytes).send(SendBody::from_reader(&mut reader))
                }
            }
        })
        .map(drop)
    }

    fn delete(&self, key: &str) -> Result<()> {
        let action = self.bucket.delete_object(self.credentials.as_ref(), key);
        self.send(|most| within(self.agent.delete(action.sign(SIGNED).as_str()), most).call()).map(drop)
    }

    fn copy(&self, from: &str, to: &str) -> Result<()> {
        let source = self.bucket.object_url(from);
        // Path-style or not: the header names the bucket itself.
        let path = source.path().trim_start_matches('/');
        let bucket = self.bucket.name();
        let path = path.strip_prefix(bucket).and_then(|path| path.strip_prefix('/')).unwrap_or(path);
        let source = format!("/{bucket}/{path}");
        let mut action = self.bucket.put_object(self.credentials.as_ref(), to);
        action.headers_mut().insert("x-amz-copy-source", source.clone());
        let mut answer = self.send(|_| {
            let call = self.agent.put(action.sign(SIGNED).as_str());
            call.header("x-amz-copy-source", &source).send(&[][..])
        })?;
        // An error may come after the status.
        let words = answer.body_mut().with_config().limit(64 * 1024).read_to_string().unwrap_or_default();
        if words.contains("<Error>") {
            tracing::warn!("copying {from}: {words}");
            return Err(Errno::IO);
        }
        Ok(())
    }

    /// Size and time of an object, and which it is.
    fn head(&self, key: &str) -> Result<(Attributes, Object)> {
        let action = self.bucket.head_object(self.credentials.as_ref(), key);
        let answer = self.send(|most| within(self.agent.head(action.sign(SIGNED).as_str()), most).call())?;
        let headers = answer.headers();
        let object = said::object(headers).map_err(|reason| lie(key, reason))?;
        Ok((self.file(object.size, http_time(headers).unwrap_or(self.begun)), object))
    }

    /// Files and directories that begin with `prefix`, at most `most`, and where to go on.
    #[allow(clippy::type_complexity)] // told apart right where it is used
    fn page(
        &self,
        prefix: &str,
        most: usize,
        after: Option<&str>,
    ) -> Result<(Vec<(String, Option<Attributes>)>, Option<String>)> {
        let mut action = self.bucket.list_objects_v2(self.credentials.as_ref());
        action.with_prefix(prefix);
        action.with_delimiter("/");
        action.with_max_keys(most);
        if let Some(after) = after {
            action.with_continuation_token(after.to_owned());
        }
        self.listed(&action)
    }

    #[allow(clippy::type_complexity)] // as above
    fn listed(
        &self,
        action: &ListObjectsV2<'_>,
    ) -> Result<(Vec<(String, Option<Attributes>)>, Option<String>)> {
        let mut answer =
            self.send(|most| within(self.agent.get(action.sign(SIGNED).as_str()), most).call())?;
        let text = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let text = text.map_err(|_| Errno::IO)?;
        let told = ListObjectsV2::parse_response(&text).map_err(|error| {
            tracing::warn!("a listing that is not understood: {error}");
            Errno::IO
        })?;
        let time = |text: Option<String>| {
            let time = text.and_then(|text| jiff::Timestamp::from_str(&text).ok());
            time.map_or(self.begun, SystemTime::from)
        };
        let mut all = Vec::with_capacity(told.contents.len() + told.common_prefixes.len());
        for object in told.contents {
            let size = object.size.filter(|size| *size <= i64::MAX as u64);
            let size =
                size.ok_or_else(|| lie(&object.key, "it is listed without a size that a file can have"))?;
            all.push((object.key, Some(self.file(size, time(object.last_modified)))));
        }
        all.extend(told.common_prefixes.into_iter().map(|common| (common.prefix, None)));
        Ok((all, told.next_continuation_token))
    }

    fn file(&self, size: u64, modified: SystemTime) -> Attributes {
        Attributes {
            inode: 0,
            mode: libc::S_IFREG | FILE_MODE,
            links: 1,
            user: self.owner.0,
            group: self.owner.1,
            device: 0,
            size,
            blocks: size.div_ceil(512),
            accessed: modified,
            modified,
            changed: modified,
        }
    }

    fn directory(&self) -> Attributes {
        Attributes { mode: libc::S_IFDIR | DIRECTORY_MODE, ..self.file(0, self.begun) }
    }

    fn find(&self, path: &[u8]) -> Result<Attributes> {
        self.find_object(path).map(|found| found.0)
    }

    /// The same, and which object it is, unless it is a directory.
    fn find_object(&self, path: &[u8]) -> Result<(Attributes, Option<Object>)> {
        if path.is_empty() {
            return Ok((self.directory(), None));
        }
        match self.head(&self.key(path)?) {
            Err(Errno::NOT_FOUND) => {}
            found => return found.map(|(shown, object)| (shown, Some(object))),
        }
        let (entries, _) = self.page(&self.folder(path)?, 1, None)?;
        if entries.is_empty() { Err(Errno::NOT_FOUND) } else { Ok((self.directory(), None)) }
    }

    /// A file that was just opened is this object, unless somebody has it open as another one already.
    fn remember(&self, of: &Place, object: Option<Object>) -> Result<()> {
        let Some(object) = object else { return Ok(()) };
        if !self.seen().get(&of.inode).is_some_and(Option::is_none) {
            return Ok(());
        }
        if object.size == 0 {
            // Nothing of it would be asked for.
            let wanted = Wanted { range: Some((0, 1)), object: Some(&object) };
            match self.fetch(&self.key(of.path()?)?, wanted, &mut |_| Ok(())) {
                Ok(_) | Err(Errno::NO_SUCH_OFFSET) => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(none) = self.seen().get_mut(&of.inode).filter(|seen| seen.is_none()) {
            *none = Some(object);
        }
        Ok(())
    }

    /// Whether there is anything in a directory but its own object.
    fn is_empty(&self, folder: &str) -> Result<bool> {
        let (entries, _) = self.page(folder, 2, None)?;
        Ok(entries.iter().all(|(key, _)| key == folder))
    }

    /// A directory whose last file has gone stays.
    fn keep(&self, path: &[u8]) -> Result<()> {
        let folder = self.folder(path)?;
        if !path.is_empty() && self.page(&folder, 1, None)?.0.is_empty() {
            self.put(&folder, None, false)?;
        }
        Ok(())
    }

    /// The object's bytes in a file without a name; none of them if it is to be `empty`.
    fn bring(&self, of: &Place, empty: bool) -> Result<File> {
        let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        let file =
            rustix::fs::open(std::env::temp_dir(), flags, rustix::fs::Mode::from_bits_truncate(0o600))?;
        let file = File::from(file);
        if !empty {
            let mut to = &file;
            self.fetch(&self.key(of.path()?)?, Wanted::default(), &mut |piece| Ok(to.write_all(piece)?))?;
        }
        Ok(file)
    }

    /// What is here of a file, if anything is.
    fn staged_of(&self, of: &Place) -> Option<Arc<Mutex<Staged>>> {
        self.staged().get(&of.inode).cloned()
    }

    /// It is not the file's any more; another one may be by now.
    fn end(&self, of: &Place, one: &Arc<Mutex<Staged>>, staged: &mut Staged) {
        staged.over = true;
        let mut all = self.staged();
        if all.get(&of.inode).is_some_and(|there| Arc::ptr_eq(there, one)) {
            all.remove(&of.inode);
        }
    }

    /// Gives an object's bytes, or those of a range, piece by piece; and says which object it is. What differs from what was asked is an error.
    fn fetch(
        &self,
        key: &str,
        wanted: Wanted<'_>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<Object> {
        let action = self.bucket.get_object(self.credentials.as_ref(), key);
        let tag = wanted.object.and_then(|object| object.tag.as_deref());
        let answer = self.send(|_| {
            let mut call = self.agent.get(action.sign(SIGNED).as_str());
            if let Some((start, bytes)) = wanted.range {
                call = call.header("range", format!("bytes={start}-{}", start + bytes - 1));
            }
            if let Some(tag) = tag {
                call = call.header("if-match", tag);
            }
            call.call()
        });
        let answer = match answer {
            // Of a call for bytes: it is another object by now.
            Err(Errno::EXISTS) => return Err(lie(key, "another object has taken its place")),
            answer => answer?,
        };
        let Answered { object, bytes } = said::answered(answer.status().as_u16(), answer.headers(), &wanted)
            .map_err(|reason| lie(key, reason))?;
        // One more than is right, to see that there is more.
        let mut reader = answer.into_body().into_with_config().limit(bytes.saturating_add(1)).reader();
        let mut piece = vec![0; PIECE_BYTES];
        let mut done = 0;
        loop {
            let read = reader.read(&mut piece).map_err(|error| lie(key, &error.to_string()))?;
            done += read as u64;
            if read == 0 || done > bytes {
                break;
            }
            take(&piece[..read])?;
        }
        if done == bytes { Ok(object) } else { Err(lie(key, "it is not as long as the store says")) }
    }

    /// Changes the file here, brought from the store unless it is to be `empty`. It is locked meanwhile: two who bring it at once could
    /// bring it from before and after what a third one put up.
    fn alter(&self, of: &Place, empty: bool, change: impl Fn(&File) -> std::io::Result<()>) -> Result<()> {
        loop {
            let one = self.staged().entry(of.inode).or_default().clone();
            let mut staged = one.lock().unwrap_or_else(PoisonError::into_inner);
            if staged.over {
                continue;
            }
            if staged.file.is_none() {
                match self.bring(of, empty) {
                    Ok(file) => staged.file = Some(file),
                    Err(error) => {
                        self.end(of, &one, &mut staged);
                        return Err(error);
                    }
                }
            }
            let Some(file) = &staged.file else { return Err(Errno::IO) };
            let done = change(file);
            staged.changed = true;
            staged.told = false;
            return Ok(done?);
        }
    }

    /// Puts up what was changed here. With `end` what is here ends too: who opens the file next asks the store, although the kernel
    /// tells that a file was closed for the last time only later.
    fn upload(&self, of: &Place, end: bool) -> Result<()> {
        let Some(one) = self.staged_of(of) else { return Ok(()) };
        let mut staged = one.lock().unwrap_or_else(PoisonError::into_inner);
        if staged.over {
            return Ok(());
        }
        if staged.changed
            && let Some(file) = &staged.file
        {
            let bytes = file.metadata()?.len();
            let put = of.path().and_then(|path| self.put(&self.key(path)?, Some((file, bytes)), false));
            staged.told = put.is_err();
            put?;
            staged.changed = false;
            // It is another object now, which is this file.
            if let Some(seen) = self.seen().get_mut(&of.inode) {
                *seen = None;
            }
        }
        if end {
            self.end(of, &one, &mut staged);
        }
        Ok(())
    }

    /// All keys that begin with `folder`; more than [`RENAMED_MAX`] are EXDEV.
    fn below(&self, folder: &str) -> Result<Vec<String>> {
        let mut action = self.bucket.list_objects_v2(self.credentials.as_ref());
        action.with_prefix(folder);
        let (entries, more) = self.listed(&action)?;
        if more.is_some() || entries.len() > RENAMED_MAX {
            return Err(Errno(libc::EXDEV));
        }
        Ok(entries.into_iter().map(|entry| entry.0).collect())
    }
}

/// A file from a place on, whatever its position is.
struct At<'a> {
    file: &'a File,
    offset: u64,
    end: u64,
}

impl Read for At<'_> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let left = usize::try_from(self.end - self.offset).unwrap_or(usize::MAX).min(to.len());
        let bytes = self.file.read_at(&mut to[..left], self.offset)?;
        self.offset += bytes as u64;
        Ok(bytes)
    }
}
