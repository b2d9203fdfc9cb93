//! What was read of an archive's files, in shared memory: accelerated processes read it there without the kernel.
//!
//! The daemon puts down what the kernel asks it for, and small files as a whole when a process asks that has opened one by
//! its name here (`named`). So the first read of a place asks the daemon, which also
//! checks that the archive is still what it was; later ones are a copy from memory. A file that is not wholly there is
//! served as far as it is; nothing is ever changed, so maps and the kernel's pages need no care.
//!
//! Invariants
//! - At most [`KEPT_BYTES_MAX`] bytes; what was begun first goes first.
//! - Processes fetch only until there is no room. From then on they leave to the kernel what is not here: it keeps what it read as long as it has
//!   memory, where a file that comes and goes here would be inflated each time.

use super::named;
use super::tree::Tree;
use crate::backend::Inode;
use crate::segment::{BLOCK_BYTES, Segment};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Bytes of all files that are kept.
const KEPT_BYTES_MAX: u64 = 256 << 20;
/// Blocks that say where the others are, of a file that is fetched.
const INDEX_BLOCKS: u64 = 1;

/// Files that are kept, at least in part.
#[derive(Debug)]
pub(super) struct Kept {
    segment: Segment,
    /// In the order in which they were begun.
    files: Mutex<VecDeque<Inode>>,
}

impl Kept {
    /// For the files of `tree`. Memory of contents is taken as it is used.
    pub(super) fn new(tree: &Tree) -> std::io::Result<Kept> {
        Ok(Kept::over(named::segment(tree, KEPT_BYTES_MAX)?))
    }

    fn over(segment: Segment) -> Kept {
        Kept { segment, files: Mutex::default() }
    }

    /// Whether a file of `size` bytes finds room, without another's going. If not, nobody asks any more.
    pub(super) fn has_room(&self, size: u64) -> bool {
        let figures = self.segment.figures();
        let free = figures.blocks_max.saturating_sub(figures.blocks_used);
        let fits = free >= size.div_ceil(BLOCK_BYTES) + INDEX_BLOCKS;
        if !fits {
            self.segment.fetch_no_more();
        }
        fits
    }

    /// What a daemon kept that died. In which order it is not known.
    pub(super) fn join(segment: Segment) -> Kept {
        let used = segment.used_records();
        let kept = |inode: &Inode| segment.record(*inode).is_ok_and(|record| record.blocks() > 0);
        let files = used.into_iter().filter(kept).collect();
        Kept { segment, files: Mutex::new(files) }
    }

    pub(super) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Keeps `bytes` of file `inode` of `size` bytes, read at `offset`: whole blocks of it, and its end.
    pub(super) fn put(&self, inode: Inode, size: u64, offset: u64, bytes: &[u8]) {
        // A size that an archive claims may be any number.
        let ends = (offset.checked_add(bytes.len() as u64), offset.checked_next_multiple_of(BLOCK_BYTES));
        let (Some(end), Some(begin)) = ends else { return };
        let until = if end == size { end } else { end / BLOCK_BYTES * BLOCK_BYTES };
        if begin >= until || until > size || inode >= self.segment.records_max() {
            return;
        }
        let part = &bytes[(begin - offset) as usize..(until - offset) as usize];
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.write(inode, size, begin, part, &mut files) {
            // Twice what is wanted, so that not every read has to make room.
            self.make_room(&mut files, part.len() as u64 * 2);
            self.write(inode, size, begin, part, &mut files);
        }
    }

    /// False when there is no room for all of it.
    fn write(&self, inode: Inode, size: u64, begin: u64, part: &[u8], files: &mut VecDeque<Inode>) -> bool {
        // A process that holds the lock may have been stopped: the file is then read by the kernel's way once more.
        let Ok(mut record) = self.segment.record(inode) else { return true };
        if !record.is_live() {
            record.begin_partial(size);
        }
        if record.blocks() == 0 {
            files.retain(|known| *known != inode);
            files.push_back(inode);
        }
        record.write(begin, part, std::time::UNIX_EPOCH).is_ok_and(|written| written == part.len())
    }

    fn make_room(&self, files: &mut VecDeque<Inode>, bytes: u64) {
        let figures = self.segment.figures();
        let enough = figures.blocks_used.saturating_sub(bytes.div_ceil(BLOCK_BYTES));
        while self.segment.figures().blocks_used > enough
            && let Some(oldest) = files.pop_front()
        {
            if let Ok(mut record) = self.segment.record(oldest) {
                record.drop_contents();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kept: &Kept, inode: Inode, offset: u64, bytes: usize) -> Option<Vec<u8>> {
        let mut to = vec![0; bytes];
        let mut record = kept.segment.record(inode).unwrap();
        let got = record.is_live().then(|| record.read(offset, &mut to))?.ok()?;
        to.truncate(got);
        Some(to)
    }

    #[test]
    fn only_what_was_put_is_there() {
        let kept = Kept::over(Segment::create(9, 1 << 20).unwrap());
        let file: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8).collect();
        assert_eq!(read(&kept, 2, 0, 10), None, "unknown is not empty");
        kept.put(2, 20_000, 100, &file[100..9000]);
        assert_eq!(read(&kept, 2, 4096, 4096).as_deref(), Some(&file[4096..8192]));
        assert_eq!(read(&kept, 2, 0, 10), None, "the first block was not read whole");
        assert_eq!(read(&kept, 2, 8000, 1000), None, "nor was the third");
        kept.put(2, 20_000, 16_384, &file[16_384..]);
        assert_eq!(read(&kept, 2, 19_000, 5000).as_deref(), Some(&file[19_000..]), "the end is");
        assert_eq!(read(&kept, 2, 20_000, 10), Some(vec![]), "behind it there is nothing");
    }

    #[test]
    fn the_oldest_goes_when_there_is_no_room() {
        let kept = Kept::over(Segment::create(65, 1 << 20).unwrap());
        let piece = vec![7; 128 * 1024];
        for inode in 2..40 {
            kept.put(inode, piece.len() as u64, 0, &piece);
            assert!(kept.segment.figures().blocks_used <= 256);
            assert!(read(&kept, inode, 0, 4096).is_some(), "what was put last is there");
        }
        assert_eq!(read(&kept, 2, 0, 4096), None, "what was put first is not");
        kept.put(2, piece.len() as u64, 0, &piece);
        assert_eq!(read(&kept, 2, 0, 4096).as_deref(), Some(&piece[..4096]), "it may come again");
    }

    #[test]
    fn there_is_room_until_another_file_would_have_to_go() {
        let kept = Kept::over(Segment::create(65, 1 << 20).unwrap());
        let piece = vec![7; 128 * 1024];
        let mut fitted = Vec::new();
        while kept.has_room(piece.len() as u64) && fitted.len() < 40 {
            fitted.push(2 + fitted.len() as Inode);
            kept.put(fitted[fitted.len() - 1], piece.len() as u64, 0, &piece);
        }
        assert_eq!(fitted.len(), 7, "each takes 32 blocks and one that says where they are, of 256");
        assert!(fitted.iter().all(|inode| read(&kept, *inode, 0, 4096).is_some()), "none went");
    }
}
