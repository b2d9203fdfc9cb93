//! Makes segment files: zeroed, synced, and only then named.

use std::io;
use std::sync::Arc;

use weir_base::world::{Disk, DiskFile};

use super::segment::{self, SegmentHeader};

const SPARE: &str = "spare";
const SPARE_TMP: &str = "spare.tmp";
const SEGMENT_TMP: &str = "segment.tmp";
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Why a segment could not be made.
pub enum CreateError {
    /// Something but a sync; the log is as before and the name of what failed is given.
    Before(&'static str, io::Error),
    /// A sync: what is on the disk is not known.
    Sync(io::Error),
}

/// Writes zeros over `length` bytes at `offset`.
pub fn write_zeros(file: &dyn DiskFile, offset: u64, length: u64) -> io::Result<()> {
    let mut done = 0;
    while done < length {
        let step = (length - done).min(ZEROS.len() as u64);
        file.write_at(offset + done, &ZEROS[..step as usize])?;
        done += step;
    }
    Ok(())
}

/// Removes what a crash left half made. A spare is remade too: whether its zeros were synced is not known.
pub fn remove_leftovers(disk: &dyn Disk) -> io::Result<()> {
    for name in [SPARE, SPARE_TMP, SEGMENT_TMP] {
        remove_if_there(disk, name)?;
    }
    Ok(())
}

fn remove_if_there(disk: &dyn Disk, name: &str) -> io::Result<()> {
    match disk.remove(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Makes a zeroed file for the next segment ahead of need. Safe beside a running log, from one thread at a time.
pub fn prepare_spare(disk: &dyn Disk, segment_bytes: u64) -> io::Result<()> {
    if disk.open(SPARE).is_ok() {
        return Ok(());
    }
    remove_if_there(disk, SPARE_TMP)?;
    let made = disk.create(SPARE_TMP).and_then(|file| {
        write_zeros(&*file, 0, segment_bytes)?;
        file.sync_data()?;
        disk.rename(SPARE_TMP, SPARE)
    });
    if made.is_err() {
        // Gives the space back; the failure to tell is the first one.
        let _freed = remove_if_there(disk, SPARE_TMP);
    }
    made
}

/// Makes the spare of a segment that is not needed any more, where there is none: its room may be all that there is. Its own name goes first, durably.
pub fn make_spare_of(disk: &dyn Disk, segment: &str, segment_bytes: u64) -> io::Result<()> {
    if disk.open(SPARE).is_ok() {
        disk.remove(segment)?;
        return disk.sync_dir();
    }
    disk.rename(segment, SPARE_TMP)?;
    disk.sync_dir()?;
    let made = disk.open(SPARE_TMP).and_then(|file| {
        write_zeros(&*file, 0, segment_bytes)?;
        file.sync_data()?;
        disk.rename(SPARE_TMP, SPARE)
    });
    if made.is_err() {
        // The segment is gone, which is what counts.
        let _freed = remove_if_there(disk, SPARE_TMP);
    }
    Ok(())
}

/// Makes and names the segment of `header`, from the spare when there is one of its size. Durable on return.
pub fn create_segment(disk: &dyn Disk, header: &SegmentHeader) -> Result<Arc<dyn DiskFile>, CreateError> {
    let before = CreateError::Before;
    let (file, name) = match take_spare(disk, header.segment_bytes) {
        Some(file) => (file, SPARE),
        None => (make_zeroed(disk, header.segment_bytes)?, SEGMENT_TMP),
    };
    file.write_at(0, &segment::encode(header)).map_err(|error| before("writing", error))?;
    file.sync_data().map_err(CreateError::Sync)?;
    disk.rename(name, &segment::file_name(header.number)).map_err(|error| before("renaming", error))?;
    disk.sync_dir().map_err(CreateError::Sync)?;
    Ok(file)
}

fn take_spare(disk: &dyn Disk, segment_bytes: u64) -> Option<Arc<dyn DiskFile>> {
    let file = disk.open(SPARE).ok()?;
    (file.len().ok()? == segment_bytes).then_some(file)
}

fn make_zeroed(disk: &dyn Disk, segment_bytes: u64) -> Result<Arc<dyn DiskFile>, CreateError> {
    let before = CreateError::Before;
    remove_if_there(disk, SEGMENT_TMP).map_err(|error| before("removing", error))?;
    let file = disk.create(SEGMENT_TMP).map_err(|error| before("creating", error))?;
    if let Err(error) = write_zeros(&*file, 0, segment_bytes) {
        // Gives the space back; the failure to tell is the first one.
        let _freed = remove_if_there(disk, SEGMENT_TMP);
        return Err(before("creating", error));
    }
    Ok(file)
}
