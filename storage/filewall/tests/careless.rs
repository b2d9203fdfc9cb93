//! A server of NFSv3 that hands names to its system as they are, over a real folder: a `/` leads several steps, `..` and an
//! absolute path out of the export, and a NUL ends a name. Servers that do this are in use.

use crate::played::{ROOT, read_record, reply_to, server};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Write};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use weir_filewall::wire::call::{Arguments, arguments};
use weir_filewall::wire::make::{Attributes, Made, at};
use weir_filewall::wire::nfs3::{Op, Status, ftype};
use weir_filewall::wire::rpc::call_head;
use weir_filewall::wire::xdr::{Reader, set_u32};
use weir_filewall::wire::{answer, nfs3};

const HANDLE: &[u8] = b"careless";
/// Most entries of one listing.
const ENTRIES_MAX: usize = 64;

/// What each handle stands for.
type Handles = Mutex<Vec<PathBuf>>;

/// Begins to serve a folder.
pub fn careless(folder: &Path) -> SocketAddr {
    let (address, connections) = server();
    let handles = Arc::new(Mutex::new(vec![folder.to_path_buf()]));
    std::thread::spawn(move || {
        for mut stream in connections {
            let handles = handles.clone();
            std::thread::spawn(move || {
                while let Some(record) = read_record(&mut stream) {
                    let results = Call::read(&record, &handles).carry_out();
                    if stream.write_all(&reply_to(&record, &results)).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

struct Call<'c> {
    record: &'c [u8],
    op: Op,
    found: Arguments,
    handles: &'c Handles,
}

fn status_of(error: &Error) -> Status {
    match error.kind() {
        ErrorKind::NotFound => Status::Noent,
        ErrorKind::AlreadyExists => Status::Exist,
        ErrorKind::NotADirectory => Status::Notdir,
        ErrorKind::IsADirectory => Status::Isdir,
        ErrorKind::DirectoryNotEmpty => Status::Notempty,
        ErrorKind::InvalidInput | ErrorKind::InvalidFilename => Status::Inval,
        _ => Status::Io,
    }
}

fn attributes(about: &Metadata) -> [u8; nfs3::ATTRIBUTES_BYTES] {
    let made = Attributes {
        folder: about.is_dir(),
        mode: about.mode() & 0o7777,
        uid: about.uid(),
        gid: about.gid(),
        size: about.size(),
        fsid: 7,
        fileid: about.ino(),
        time: (about.mtime() as u32, 0),
    };
    let mut bytes = made.bytes();
    if about.is_symlink() {
        set_u32(&mut bytes, at::KIND, ftype::LINK);
    }
    bytes
}

impl<'c> Call<'c> {
    fn read(record: &'c [u8], handles: &'c Handles) -> Call<'c> {
        let mut reader = Reader::whole(record);
        let op = Op::from_number(call_head(&mut reader).unwrap().procedure).unwrap();
        let found = arguments(&mut reader, op).unwrap();
        Call { record, op, found, handles }
    }

    fn path(&self, number: usize) -> Result<PathBuf, Error> {
        let handle = self.found.handles[number].of(self.record);
        let known = self.handles.lock().unwrap();
        let index = match handle.strip_prefix(HANDLE) {
            Some(index) => index.try_into().ok().map(u64::from_be_bytes),
            None => (handle == ROOT).then_some(0),
        };
        let path = index.and_then(|index| known.get(usize::try_from(index).ok()?));
        path.cloned().ok_or_else(|| Error::from(ErrorKind::StaleNetworkFileHandle))
    }

    /// As far as the system would look at it.
    fn named(&self, folder: usize, name: usize) -> Result<PathBuf, Error> {
        let name = self.found.names[name].of(self.record);
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Ok(self.path(folder)?.join(OsStr::from_bytes(&name[..end])))
    }

    fn handle(&self, path: &Path) -> Vec<u8> {
        let mut known = self.handles.lock().unwrap();
        let index = known.iter().position(|other| other == path).unwrap_or_else(|| {
            known.push(path.to_path_buf());
            known.len() - 1
        });
        if index == 0 { ROOT.to_vec() } else { [HANDLE, &(index as u64).to_be_bytes()].concat() }
    }

    /// What is below a path is elsewhere now, or nowhere.
    fn moved(&self, from: &Path, to: Option<&Path>) {
        for path in self.handles.lock().unwrap().iter_mut() {
            let gone = || Path::new("/nowhere").to_path_buf();
            if to.is_some_and(|to| path.starts_with(to)) {
                *path = gone();
            } else if let Ok(below) = path.strip_prefix(from) {
                let below = |to: &Path| if below == Path::new("") { to.into() } else { to.join(below) };
                *path = to.map_or_else(gone, below);
            }
        }
    }

    fn carry_out(&self) -> Vec<u8> {
        self.try_out().unwrap_or_else(|error| {
            let stale = error.kind() == ErrorKind::StaleNetworkFileHandle;
            answer::results(self.op, if stale { Status::Stale } else { status_of(&error) })
        })
    }

    fn after(&self, path: &Path) -> Option<[u8; nfs3::ATTRIBUTES_BYTES]> {
        fs::symlink_metadata(path).ok().map(|about| attributes(&about))
    }

    /// A file that is no link, open.
    fn open(&self, write: bool) -> Result<File, Error> {
        let path = self.path(0)?;
        if !fs::symlink_metadata(&path)?.is_file() {
            return Err(ErrorKind::InvalidInput.into());
        }
        OpenOptions::new().read(true).write(write).open(path)
    }

    fn made(&self, path: &Path) -> Vec<u8> {
        let attributes = self.after(path);
        Made::ok().u32(1).opaque(&self.handle(path)).after(attributes.as_ref()).u32(0).u32(0).0
    }

    fn try_out(&self) -> Result<Vec<u8>, Error> {
        let words = |made: Made, count: usize| (0..count).fold(made, |made, _| made.u32(0)).0;
        Ok(match self.op {
            Op::Getattr => Made::ok().attributes(&attributes(&fs::symlink_metadata(self.path(0)?)?)).0,
            Op::Setattr => self.set()?,
            Op::Lookup => {
                let path = self.named(0, 0)?;
                fs::symlink_metadata(&path)?;
                let (own, folder) = (self.after(&path), self.after(&self.path(0)?));
                Made::ok().opaque(&self.handle(&path)).after(own.as_ref()).after(folder.as_ref()).0
            }
            Op::Access => Made::ok().after(self.after(&self.path(0)?).as_ref()).u32(63).0,
            Op::Readlink => {
                let (path, own) = (fs::read_link(self.path(0)?)?, self.after(&self.path(0)?));
                Made::ok().after(own.as_ref()).opaque(path.as_os_str().as_bytes()).0
            }
            Op::Read => {
                let mut data = vec![0; (self.found.count as usize).min(4096)];
                let bytes = self.open(false)?.read_at(&mut data, self.found.offset)?;
                let own = self.after(&self.path(0)?);
                Made::ok().after(own.as_ref()).u32(bytes as u32).u32(0).opaque(&data[..bytes]).0
            }
            Op::Write => {
                let data = self.found.payload.unwrap().of(self.record);
                self.open(true)?.write_all_at(data, self.found.offset.min(1 << 20))?;
                let made = Made::ok().u32(0).after(self.after(&self.path(0)?).as_ref());
                made.u32(data.len() as u32).u32(2).u64(0).0
            }
            Op::Commit => Made::ok().u32(0).after(self.after(&self.path(0)?).as_ref()).u64(0).0,
            Op::Create => {
                let path = self.named(0, 0)?;
                let guarded = self.record[self.found.names[0].padded_end() + 3] != 0;
                let empties = self.found.set.size.is_some();
                OpenOptions::new()
                    .write(true)
                    .create_new(guarded)
                    .create(true)
                    .truncate(empties)
                    .open(&path)?;
                self.made(&path)
            }
            Op::Mkdir => {
                let path = self.named(0, 0)?;
                fs::create_dir(&path)?;
                self.made(&path)
            }
            Op::Symlink => {
                let path = self.named(0, 0)?;
                symlink("target", &path)?;
                self.made(&path)
            }
            Op::Remove | Op::Rmdir => {
                let path = self.named(0, 0)?;
                if self.op == Op::Remove { fs::remove_file(&path) } else { fs::remove_dir(&path) }?;
                self.moved(&path, None);
                words(Made::ok(), 2)
            }
            Op::Rename => {
                let (from, to) = (self.named(0, 0)?, self.named(1, 1)?);
                fs::rename(&from, &to)?;
                self.moved(&from, Some(&to));
                words(Made::ok(), 4)
            }
            Op::Link => {
                fs::hard_link(self.path(0)?, self.named(1, 0)?)?;
                words(Made::ok(), 3)
            }
            Op::Readdir | Op::Readdirplus => self.list()?,
            Op::Fsstat => words(Made::ok().after(self.after(&self.path(0)?).as_ref()), 13),
            Op::Fsinfo => words(Made::ok().after(self.after(&self.path(0)?).as_ref()), 12),
            Op::Pathconf => words(Made::ok().after(self.after(&self.path(0)?).as_ref()), 6),
            Op::Null | Op::Mknod => answer::results(self.op, Status::Notsupp),
        })
    }

    fn set(&self) -> Result<Vec<u8>, Error> {
        let path = self.path(0)?;
        let about = fs::symlink_metadata(&path)?;
        let word = |at: usize| u32::from_be_bytes(self.record[at..at + 4].try_into().unwrap());
        if let (Some(at), false) = (self.found.set.mode_at, about.is_symlink()) {
            fs::set_permissions(&path, fs::Permissions::from_mode(word(at) & 0o777 | 0o700))?;
        }
        Ok(Made::ok().u32(0).after(self.after(&path).as_ref()).0)
    }

    fn list(&self) -> Result<Vec<u8>, Error> {
        let folder = self.path(0)?;
        let cookie_at = self.found.handles[0].padded_end();
        let cookie = u64::from_be_bytes(self.record[cookie_at..cookie_at + 8].try_into().unwrap());
        let mut names: Vec<PathBuf> =
            fs::read_dir(&folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
        names.sort();
        let behind = usize::try_from(cookie).unwrap_or(usize::MAX);
        let mut made = Made::ok().after(self.after(&folder).as_ref()).u64(0);
        let (count, plus) = (names.len(), self.op == Op::Readdirplus);
        if let (true, Some(above)) = (plus && cookie == 0, folder.parent()) {
            // Also above the export.
            made = made.u32(1).u64(99).opaque(b"..").u64(0);
            made = made.after(self.after(above).as_ref()).u32(1).opaque(&self.handle(above));
        }
        for (number, path) in names.iter().enumerate().skip(behind).take(ENTRIES_MAX) {
            let Some(own) = self.after(path) else { continue };
            let name = path.file_name().unwrap_or_default().as_bytes();
            made = made.u32(1).u64(number as u64 + 100).opaque(name).u64(number as u64 + 1);
            if plus {
                made = made.after(Some(&own)).u32(1).opaque(&self.handle(path));
            }
        }
        Ok(made.u32(0).u32(u32::from(behind.saturating_add(ENTRIES_MAX) >= count)).0)
    }
}
