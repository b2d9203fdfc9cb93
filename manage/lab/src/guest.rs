//! What a QEMU guest of a bench or a test begins with: Debian's kernel as `scripts/guest-kernel` fetches it, and a first root in memory that is made of
//! programs of this machine.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where `scripts/guest-kernel` puts the kernel and its modules.
const CACHE: &str = "/var/cache/weir/guest";
const FOLDER: u32 = 0o40755;
const PROGRAM: u32 = 0o100_755;
const DATA: u32 = 0o100_644;

/// A file of a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its path, without the first slash.
    pub path: String,
    /// Its kind and mode, as of `stat(2)`.
    pub mode: u32,
    /// What is in it.
    pub content: Vec<u8>,
}

impl File {
    /// An empty folder.
    pub fn folder(path: &str) -> File {
        File { path: path.to_owned(), mode: FOLDER, content: Vec::new() }
    }

    /// A program.
    pub fn program(path: &str, content: impl Into<Vec<u8>>) -> File {
        File { path: path.to_owned(), mode: PROGRAM, content: content.into() }
    }

    /// A file that all may read.
    pub fn data(path: &str, content: impl Into<Vec<u8>>) -> File {
        File { path: path.to_owned(), mode: DATA, content: content.into() }
    }
}

/// The kernel of guests; nothing where it was not fetched.
pub fn kernel() -> Option<PathBuf> {
    let entries = std::fs::read_dir(Path::new(CACHE).join("boot")).ok()?;
    entries.flatten().map(|entry| entry.path()).find(|path| path.to_string_lossy().contains("vmlinuz-"))
}

/// Whether a module of that kernel is there.
pub fn has_module(name: &str) -> bool {
    module_path(name).exists()
}

fn module_path(name: &str) -> PathBuf {
    Path::new(CACHE).join("modules").join(format!("{name}.ko"))
}

/// A module of the kernel, as `modules/NAME.ko`.
///
/// # Errors
/// [`Error::Io`].
pub fn module(name: &str) -> Result<File> {
    Ok(File::data(&format!("modules/{name}.ko"), read(&module_path(name))?))
}

/// A program of this machine, under the path `at`.
///
/// # Errors
/// [`Error::Io`].
pub fn program_at(path: &str, at: &str) -> Result<File> {
    Ok(File::program(at, read(Path::new(path))?))
}

/// A program of this machine with the libraries that it is linked to, under the same paths; their folders first.
///
/// # Errors
/// [`Error::Io`].
pub fn program(path: &str) -> Result<Vec<File>> {
    let output = Command::new("ldd").arg(path).output().map_err(|error| Error::io("ldd", error))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let libraries = text.split_whitespace().filter(|word| word.starts_with('/'));
    let mut files: Vec<File> = Vec::new();
    for path in std::iter::once(path).chain(libraries) {
        let inner = path.trim_start_matches('/');
        for folder in Path::new(inner).ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
            let name = folder.display().to_string();
            if !name.is_empty() {
                add(&mut files, File::folder(&name));
            }
        }
        files.push(program_at(path, inner)?);
    }
    Ok(files)
}

/// Adds a file unless there is one of its path: programs share libraries.
pub fn add(files: &mut Vec<File>, file: File) {
    if !files.iter().any(|known| known.path == file.path) {
        files.push(file);
    }
}

/// An archive in the format `newc`, which Linux unpacks as its first root.
pub fn archive(files: &[File]) -> Vec<u8> {
    let mut archive = Vec::new();
    let end = File { path: "TRAILER!!!".to_owned(), mode: 0, content: Vec::new() };
    for (number, File { path, mode, content }) in files.iter().chain([&end]).enumerate() {
        let (bytes, length) = (content.len() as u32, path.len() as u32 + 1);
        let fields = [number as u32 + 1, *mode, 0, 0, 1, 0, bytes, 0, 0, 0, 0, length, 0];
        archive.extend(b"070701");
        fields.iter().for_each(|field| archive.extend(format!("{field:08x}").bytes()));
        archive.extend(path.bytes().chain([0]));
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend(content);
        archive.resize(archive.len().next_multiple_of(4), 0);
    }
    archive
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Error::io(path.display().to_string(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_what_cpio_reads() {
        let files = [File::folder("bin"), File::program("bin/one", "1"), File::data("two", vec![b'2'; 5])];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("archive");
        std::fs::write(&path, archive(&files)).unwrap();
        let listed = Command::new("cpio").args(["-t", "--quiet", "-F"]).arg(&path).output();
        let Ok(listed) = listed else {
            return println!("NOT RUN an_archive_is_what_cpio_reads: there is no cpio");
        };
        assert_eq!(String::from_utf8_lossy(&listed.stdout), "bin\nbin/one\ntwo\n", "{listed:?}");
    }

    #[test]
    fn a_path_is_added_once() {
        let mut files = program("/bin/sh").unwrap();
        let count = files.len();
        assert!(count > 1 && files.iter().any(|file| file.path == "bin/sh" && !file.content.is_empty()));
        program("/bin/sh").unwrap().into_iter().for_each(|file| add(&mut files, file));
        assert_eq!(files.len(), count);
    }
}
