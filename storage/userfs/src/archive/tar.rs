//! The index of a tar: ustar, pax (local and global headers), GNU (long names, sparse files), old V7.
//!
//! Headers are read one after the other at their places; bodies are passed over. The crate `tar` decodes a header's
//! fields; which header says what for the next entry, and where its bytes are, is decided here, because that crate's
//! reader holds names of any length in memory and keeps the pieces of sparse files to itself.

use super::source::{Source, damaged, read_all};
use super::tree::{About, Builder, Content, Data, PATH_BYTES_MAX, PIECES_MAX, Piece, Refusal};
use std::borrow::Cow;
use std::io::Result;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tar::{EntryType, GnuExtSparseHeader, Header};

const BLOCK_BYTES: usize = 512;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes of the body of a header for other headers: long names, pax records.
const EXTRA_BYTES_MAX: u64 = 1 << 20;
/// Bytes of the map at the beginning of a sparse file of pax format 1.0.
const MAP_BYTES_MAX: u64 = 32 << 20;

/// Whether `block` is the header of a tar.
pub(super) fn is_header(block: &[u8; BLOCK_BYTES]) -> bool {
    let header = Header::from_byte_slice(block);
    let Ok(expected) = header.cksum() else { return false };
    let field = 148..156;
    let sum = |signed: bool| {
        block.iter().enumerate().fold(0i64, |sum, (at, byte)| {
            let byte = if field.contains(&at) { b' ' } else { *byte };
            sum + if signed { i64::from(byte as i8) } else { i64::from(byte) }
        })
    };
    // Old programs added signed bytes.
    i64::from(expected) == sum(false) || i64::from(expected) == sum(true)
}

/// What pax records say; nothing for what they leave to the header.
#[derive(Debug, Default, Clone)]
struct Records {
    path: Option<Arc<[u8]>>,
    link: Option<Arc<[u8]>>,
    size: Option<u64>,
    user: Option<u64>,
    group: Option<u64>,
    modified: Option<SystemTime>,
    sparse: Sparse,
}

/// What pax records say about a sparse file.
#[derive(Debug, Default, Clone)]
struct Sparse {
    /// 1.0: the map is in front of the bytes.
    in_front: bool,
    name: Option<Arc<[u8]>>,
    size: Option<u64>,
    /// Offsets and lengths by turns.
    map: Vec<u64>,
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Seconds since 1970 with a fraction, maybe negative.
fn time(text: &[u8]) -> Option<SystemTime> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let since = Duration::new(whole.parse().ok()?, digits.parse().ok()?);
    if negative { UNIX_EPOCH.checked_sub(since) } else { UNIX_EPOCH.checked_add(since) }
}

impl Records {
    /// Takes over what the records in `body` say.
    fn read(&mut self, mut body: &[u8]) -> Result<()> {
        let wrong = || damaged("a pax header has a record whose length is wrong");
        while let Some(first) = body.first() {
            if *first == 0 {
                break;
            }
            let space = body.iter().take(21).position(|byte| *byte == b' ').ok_or_else(wrong)?;
            let bytes = number(&body[..space]).and_then(|bytes| usize::try_from(bytes).ok());
            let bytes = bytes.filter(|bytes| *bytes > space + 1 && *bytes <= body.len()).ok_or_else(wrong)?;
            let (record, rest) = body.split_at(bytes);
            let record = &record[space + 1..record.len() - 1];
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(wrong)?;
            self.take(&record[..equals], &record[equals + 1..]);
            body = rest;
        }
        Ok(())
    }

    fn take(&mut self, key: &[u8], value: &[u8]) {
        match key {
            b"path" => self.path = Some(value.into()),
            b"linkpath" => self.link = Some(value.into()),
            b"size" => self.size = number(value),
            b"uid" => self.user = number(value),
            b"gid" => self.group = number(value),
            b"mtime" => self.modified = time(value),
            b"GNU.sparse.major" => self.sparse.in_front = value == b"1",
            b"GNU.sparse.name" => self.sparse.name = Some(value.into()),
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => self.sparse.size = number(value),
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => self.sparse.map.extend(number(value)),
            b"GNU.sparse.map" => {
                self.sparse.map = value.split(|byte| *byte == b',').map_while(number).collect();
            }
            // Names of owners, access times, attributes of other systems: nothing that is shown.
            _ => {}
        }
    }
}

/// Size and pieces of a sparse file.
type Sparsely = (u64, Vec<Piece>);

struct Reader<'a> {
    from: &'a dyn Source,
    into: &'a mut Builder,
    /// For all entries that follow.
    global: Records,
    /// For the next entry alone.
    local: Option<Records>,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
}

/// Adds the entries of the tar in `from`.
pub(super) fn index(from: &dyn Source, into: &mut Builder) -> Result<()> {
    let mut reader =
        Reader { from, into, global: Records::default(), local: None, long_name: None, long_link: None };
    let mut at = 0;
    loop {
        let mut block = [0; BLOCK_BYTES];
        match from.read_at(at, &mut block)? {
            0 => return Ok(()),
            BLOCK_BYTES => {}
            _ => return Err(damaged("it ends in the middle of a header")),
        }
        if block.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        if !is_header(&block) {
            return Err(damaged(format!("there is no tar header at byte {at}, where one must be")));
        }
        at = reader.entry(Header::from_byte_slice(&block), at + BLOCK)?;
    }
}

/// Where the header behind `bytes` at `start` is.
fn behind(start: u64, bytes: u64) -> Result<u64> {
    bytes
        .checked_next_multiple_of(BLOCK)
        .and_then(|padded| start.checked_add(padded))
        .ok_or_else(|| damaged(format!("an entry says that it has {bytes} bytes")))
}

impl Reader<'_> {
    /// The entry whose header ends at `body`. Where the next one is.
    fn entry(&mut self, header: &Header, body: u64) -> Result<u64> {
        let kind = header.entry_type();
        let records = self.local.as_ref().unwrap_or(&self.global);
        let stored = if has_no_bytes(kind) {
            0
        } else {
            let field =
                header.entry_size().map_err(|_| damaged("a tar header has a size that is no number"))?;
            records.size.filter(|_| !is_extra(kind)).unwrap_or(field)
        };
        let mut body = body;
        let mut pieces = None;
        if kind == EntryType::GNUSparse {
            (body, pieces) = self.gnu_map(header, body, stored)?;
        }
        let next = behind(body, stored)?;
        if stored > 0 {
            read_all(self.from, body + stored - 1, &mut [0])?;
        }
        match kind {
            EntryType::XHeader => {
                let mut records = self.global.clone();
                records.read(&self.extra(body, stored)?)?;
                self.local = Some(records);
                return Ok(next);
            }
            EntryType::XGlobalHeader => {
                let body = self.extra(body, stored)?;
                self.global.read(&body)?;
                // A map is one file's.
                self.global.sparse = Sparse::default();
                return Ok(next);
            }
            EntryType::GNULongName => self.long_name = Some(self.text(body, stored)?),
            EntryType::GNULongLink => self.long_link = Some(self.text(body, stored)?),
            _ => {
                let records = self.local.take().unwrap_or_else(|| self.global.clone());
                let (name, link) = (self.long_name.take(), self.long_link.take());
                self.file(header, kind, records, (name, link), (body, stored), pieces)?;
            }
        }
        Ok(next)
    }

    fn extra(&self, body: u64, bytes: u64) -> Result<Vec<u8>> {
        if bytes > EXTRA_BYTES_MAX {
            return Err(damaged(format!(
                "a header for other headers has {bytes} bytes; at most {EXTRA_BYTES_MAX} are read"
            )));
        }
        let mut text = vec![0; bytes as usize];
        read_all(self.from, body, &mut text)?;
        Ok(text)
    }

    /// A long name, without the zero byte at its end.
    fn text(&self, body: u64, bytes: u64) -> Result<Vec<u8>> {
        let mut text = self.extra(body, bytes)?;
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        text.truncate(end);
        Ok(text)
    }

    fn file(
        &mut self,
        header: &Header,
        kind: EntryType,
        records: Records,
        long: (Option<Vec<u8>>, Option<Vec<u8>>),
        (body, stored): (u64, u64),
        pieces: Option<Sparsely>,
    ) -> Result<()> {
        // Records for all entries may be long, and are shared, not copied.
        let said = records.sparse.name.as_deref().or(records.path.as_deref()).or(long.0.as_deref());
        let path = said.map_or_else(|| header.path_bytes(), Cow::Borrowed);
        let said = records.link.as_deref().or(long.1.as_deref());
        let link = said.map_or_else(|| header.link_name_bytes().unwrap_or_default(), Cow::Borrowed);
        let about = |kind: u32| About {
            mode: kind | header.mode().unwrap_or(0o644) & 0o7777,
            user: owner(records.user.or(header.uid().ok())),
            group: owner(records.group.or(header.gid().ok())),
            modified: records.modified.or_else(|| modified(header)).unwrap_or(UNIX_EPOCH),
        };
        let directory = || Content::Directory { parent: 0, names: Vec::new() };
        match kind {
            EntryType::Link => self.into.link(&path, &link),
            EntryType::Symlink => self.into.add(&path, about(libc::S_IFLNK), target(&link)),
            EntryType::Directory => self.into.add(&path, about(libc::S_IFDIR), directory()),
            EntryType::Fifo => self.into.add(&path, about(libc::S_IFIFO), Content::Pipe),
            EntryType::Char | EntryType::Block => self.into.refuse("device"),
            // Of GNU tar: a directory with a list of names, the name of the tape, a part of another tape.
            other if other.as_byte() == b'D' => self.into.add(&path, about(libc::S_IFDIR), directory()),
            other if matches!(other.as_byte(), b'V' | b'M' | b'N') => {
                self.into.refuse("label, or part of a file of several volumes");
            }
            EntryType::Regular if path.ends_with(b"/") => {
                self.into.add(&path, about(libc::S_IFDIR), directory());
            }
            // POSIX: what is not known is a file.
            _ => match self.content(&records, (body, stored), pieces)? {
                Ok(content) => self.into.add(&path, about(libc::S_IFREG), content),
                Err(reason) => self.into.refuse(reason),
            },
        }
        Ok(())
    }

    fn content(
        &self,
        records: &Records,
        (body, stored): (u64, u64),
        gnu: Option<Sparsely>,
    ) -> Result<std::result::Result<Content, Refusal>> {
        let sparse = &records.sparse;
        let (size, pieces) = match gnu {
            Some(gnu) => gnu,
            None => {
                let (map, data) = if sparse.in_front {
                    self.map_in_front(body, stored)?
                } else {
                    (sparse.map.clone(), body)
                };
                let Some(size) = sparse.size.filter(|_| sparse.in_front || !map.is_empty()) else {
                    return Ok(Ok(Content::File { size: stored, data: Data::Stored(body) }));
                };
                (size, placed(map.chunks_exact(2).map(|pair| (pair[0], pair[1])), data))
            }
        };
        if !fits(&pieces, size, body + stored) {
            return Ok(Err("sparse file with a wrong map"));
        }
        Ok(Ok(Content::File { size, data: Data::Sparse(pieces.into()) }))
    }

    /// The map of a sparse file of pax format 1.0: lines of numbers, the first is how many pieces.
    fn map_in_front(&self, body: u64, stored: u64) -> Result<(Vec<u64>, u64)> {
        let mut map: Vec<u64> = Vec::new();
        let mut wanted = None;
        let (mut at, mut line) = (body, Vec::new());
        while wanted.is_none_or(|wanted| map.len() < wanted) {
            if at + BLOCK > body + stored || at - body > MAP_BYTES_MAX {
                return Err(damaged("the map of a sparse file does not end"));
            }
            let mut block = [0; BLOCK_BYTES];
            read_all(self.from, at, &mut block)?;
            at += BLOCK;
            for byte in block {
                if byte != b'\n' {
                    line.push(byte);
                    continue;
                }
                let value =
                    number(&line).ok_or_else(|| damaged("the map of a sparse file has no numbers"))?;
                line.clear();
                match wanted {
                    None if value as usize > PIECES_MAX => {
                        return Err(damaged(format!("a sparse file has {value} pieces")));
                    }
                    None => wanted = Some(value as usize * 2),
                    Some(wanted) if map.len() < wanted => map.push(value),
                    Some(_) => break,
                }
                if wanted == Some(map.len()) {
                    break;
                }
            }
            if line.len() > BLOCK_BYTES {
                return Err(damaged("the map of a sparse file has no numbers"));
            }
        }
        Ok((map, at))
    }

    /// The map of a sparse file of GNU's format, which goes on behind the header. Where its bytes begin.
    fn gnu_map(&self, header: &Header, mut body: u64, stored: u64) -> Result<(u64, Option<Sparsely>)> {
        let Some(gnu) = header.as_gnu() else {
            return Err(damaged("a sparse file has a header of another format than GNU's"));
        };
        let mut map = Vec::new();
        let wrong = |_| damaged("the map of a sparse file has no numbers");
        let mut take = |entries: &[tar::GnuSparseHeader]| -> Result<()> {
            for entry in entries.iter().filter(|entry| !entry.is_empty()) {
                map.push((entry.offset().map_err(wrong)?, entry.length().map_err(wrong)?));
            }
            if map.len() > PIECES_MAX { Err(damaged("a sparse file has too many pieces")) } else { Ok(()) }
        };
        take(&gnu.sparse)?;
        let mut more = gnu.is_extended();
        while more {
            let mut block = GnuExtSparseHeader::new();
            read_all(self.from, body, block.as_mut_bytes())?;
            body += BLOCK;
            take(block.sparse())?;
            more = block.is_extended();
        }
        let size = gnu.real_size().map_err(wrong)?;
        behind(body, stored)?;
        Ok((body, Some((size, placed(map.into_iter(), body)))))
    }
}

/// Whether an entry of this kind speaks about others.
fn is_extra(kind: EntryType) -> bool {
    matches!(
        kind,
        EntryType::XHeader | EntryType::XGlobalHeader | EntryType::GNULongName | EntryType::GNULongLink
    )
}

/// POSIX: no bytes follow, whatever the header says.
fn has_no_bytes(kind: EntryType) -> bool {
    matches!(
        kind,
        EntryType::Link
            | EntryType::Symlink
            | EntryType::Char
            | EntryType::Block
            | EntryType::Directory
            | EntryType::Fifo
    )
}

/// A target that is too long is none: its first bytes say that it is.
fn target(link: &[u8]) -> Content {
    Content::Link(link[..link.len().min(PATH_BYTES_MAX + 1)].to_vec())
}

/// The time of a header. What does not fit into octal digits GNU tar writes as a number of two's complement: times before 1970 too.
fn modified(header: &Header) -> Option<SystemTime> {
    let field = header.as_old().mtime;
    if field[0] != 0xff {
        return UNIX_EPOCH.checked_add(Duration::from_secs(header.mtime().ok()?));
    }
    let (above, seconds) = field.split_at_checked(4)?;
    let seconds = i64::from_be_bytes(seconds.try_into().ok()?);
    let is_one = above.iter().all(|byte| *byte == 0xff) && seconds < 0;
    UNIX_EPOCH.checked_sub(Duration::from_secs(seconds.unsigned_abs())).filter(|_| is_one)
}

fn owner(number: Option<u64>) -> u32 {
    // The number that the kernel shows for owners it cannot.
    const NOBODY: u32 = 65_534;
    number.and_then(|number| u32::try_from(number).ok()).unwrap_or(NOBODY)
}

/// Pieces in the order of a map whose bytes lie one behind the other from `data` on.
fn placed(map: impl Iterator<Item = (u64, u64)>, data: u64) -> Vec<Piece> {
    let mut stored = data;
    let mut pieces = Vec::new();
    for (offset, bytes) in map {
        if bytes > 0 {
            pieces.push(Piece { offset, bytes, stored });
        }
        stored = stored.saturating_add(bytes);
    }
    pieces
}

/// Whether pieces come in order, do not overlap, and end within the file and the entry.
fn fits(pieces: &[Piece], size: u64, end: u64) -> bool {
    let mut at = 0;
    pieces.iter().all(|piece| {
        let begins = piece.offset >= at;
        at = piece.offset.saturating_add(piece.bytes);
        begins && at <= size && piece.stored.saturating_add(piece.bytes) <= end
    })
}
