//! The index of a zip: its central directory, which the crate `rawzip` reads.

use super::checked::Checked;
use super::source::{Source, damaged};
use super::tree::{About, Builder, Content, Data, PATH_BYTES_MAX};
use super::{Member, Members};
use jiff::civil;
use jiff::tz::TimeZone;
use rawzip::extra_fields::ExtraFieldId;
use rawzip::time::ZipDateTimeKind;
use rawzip::{CompressionMethod, ReaderAt, ZipArchive, ZipFileHeaderRecord, ZipLocator};
use std::io::Result;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes before the end among which the end of the directory is looked for: its comment has at most 64 KiB.
const SEARCH_BYTES: u64 = 128 * 1024;

struct Adapter(Arc<dyn Source>);

impl ReaderAt for Adapter {
    fn read_at(&self, to: &mut [u8], offset: u64) -> Result<usize> {
        self.0.read_at(offset, to)
    }
}

fn wrong(error: rawzip::Error) -> std::io::Error {
    damaged(format!("it is no zip that can be read: {error}"))
}

fn modified(kind: &ZipDateTimeKind) -> SystemTime {
    let seconds = match kind {
        ZipDateTimeKind::Utc(time) => time.to_unix(),
        // Without more the time is that of the clock on the wall.
        ZipDateTimeKind::Local(time) => {
            let local = civil::DateTime::new(
                time.year() as i16,
                time.month() as i8,
                time.day() as i8,
                time.hour() as i8,
                time.minute() as i8,
                time.second() as i8,
                0,
            );
            let zoned = local.and_then(|local| local.to_zoned(TimeZone::system()));
            zoned.map(|zoned| zoned.timestamp().as_second()).unwrap_or(0)
        }
    };
    let since = Duration::from_secs(seconds.unsigned_abs());
    let time = if seconds < 0 { UNIX_EPOCH.checked_sub(since) } else { UNIX_EPOCH.checked_add(since) };
    time.unwrap_or(UNIX_EPOCH)
}

/// Adds the entries of the zip of `bytes` bytes in `from`; deflated ones become `members`.
pub(super) fn index(
    from: &Arc<dyn Source>,
    bytes: u64,
    owner: (u32, u32),
    into: &mut Builder,
    members: &mut Members,
) -> Result<()> {
    let mut buffer = vec![0; rawzip::MAX_CENTRAL_DIRECTORY_RECORD_SIZE.max(rawzip::RECOMMENDED_BUFFER_SIZE)];
    let locator = ZipLocator::new().max_search_space(SEARCH_BYTES);
    let archive = locator
        .locate_in_reader(Adapter(from.clone()), &mut buffer, bytes)
        .map_err(|(_, error)| wrong(error))?;
    let mut entries = archive.entries(&mut buffer);
    while let Some(entry) = entries.next_entry().map_err(wrong)? {
        add(&archive, &entry, owner, into, members)?;
    }
    Ok(())
}

/// A name in UTF-8 that programs with another encoding put beside theirs, if that is still the one that it is for.
fn unicode<'a>(field: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (version, rest) = field.split_first()?;
    let (sum, unicode) = rest.split_at_checked(4)?;
    let is_for = u32::from_le_bytes(sum.try_into().ok()?) == crc32fast::hash(name);
    (*version == 1 && is_for && std::str::from_utf8(unicode).is_ok()).then_some(unicode)
}

fn name(entry: &ZipFileHeaderRecord<'_>) -> Vec<u8> {
    let path = entry.file_path();
    let name = path.as_bytes();
    let mut fields = entry.extra_fields();
    let field = fields.find(|(id, _)| *id == ExtraFieldId::INFO_ZIP_UNICODE_PATH);
    field.and_then(|(_, field)| unicode(field, name)).unwrap_or(name).to_vec()
}

fn add(
    archive: &ZipArchive<Adapter>,
    entry: &ZipFileHeaderRecord<'_>,
    owner: (u32, u32),
    into: &mut Builder,
    members: &mut Members,
) -> Result<()> {
    let path = name(entry);
    let mode = entry.mode().value();
    let about = |kind: u32| About {
        // Made by systems without permissions.
        mode: kind | if mode & 0o777 == 0 { 0o644 } else { mode & 0o777 },
        user: owner.0,
        group: owner.1,
        modified: modified(&entry.last_modified()),
    };
    if entry.is_dir() {
        let mut about = about(libc::S_IFDIR);
        if mode & 0o777 == 0 {
            about.mode |= 0o111;
        }
        into.add(&path, about, Content::Directory { parent: 0, names: Vec::new() });
        return Ok(());
    }
    let range = match archive.get_entry(entry.wayfinder()) {
        Ok(found) => found.compressed_data_range(),
        Err(_) => {
            into.refuse("member whose header is not where the directory says");
            return Ok(());
        }
    };
    let size = entry.uncompressed_size_hint();
    let data = if entry.flags().is_encrypted() {
        into.refuse("encrypted: shown, but cannot be read");
        Data::Unreadable
    } else if entry.compression_method() == CompressionMethod::STORE {
        if range.1 - range.0 != size {
            into.refuse("stored member of two different sizes");
            return Ok(());
        }
        members.add_checked(Checked::new(range.0, size, entry.crc32()))
    } else if entry.compression_method() == CompressionMethod::DEFLATE {
        members.add(Member { range, size, checksum: entry.crc32() })
    } else {
        into.refuse("compressed otherwise than by deflate: shown, but cannot be read");
        Data::Unreadable
    };
    if !entry.mode().is_symlink() {
        into.add(&path, about(libc::S_IFREG), Content::File { size, data });
        return Ok(());
    }
    if size > PATH_BYTES_MAX as u64 {
        into.refuse("link without a target, or with one that is too long");
        return Ok(());
    }
    let mut target = vec![0; size as usize];
    match members.read(&data, 0, &mut target) {
        Ok(bytes) if bytes == target.len() => {
            into.add(&path, About { mode: libc::S_IFLNK | 0o777, ..about(0) }, Content::Link(target));
        }
        _ => into.refuse("link whose target cannot be read"),
    }
    Ok(())
}
