//! The blobs in memory, and the storage that consensus sees.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};

use bytes::BufMut;
use commonware_runtime::{
    Blob, BlobVersion, Buf, Error, Handle, IoBufs, IoBufsMut, ReadOptions, Storage, WriteOptions,
};
use commonware_utils::channel::{mpsc, oneshot};

use super::record::{BLOB_BYTES_MAX, Change, Contents, Key, NAME_BYTES_MAX, PIECE_BYTES_MAX, write};
use super::writer::Request;
use crate::lock::locked;

/// The version of every blob: the library has one.
const VERSION: BlobVersion = commonware_runtime::DEFAULT_BLOB_VERSION;

type Content = Arc<Mutex<Vec<u8>>>;

/// The blobs, and what of them the writer was not told.
#[derive(Default)]
pub(super) struct Blobs {
    all: BTreeMap<Key, Content>,
    untold: Vec<Change>,
}

impl From<Contents> for Blobs {
    fn from(contents: Contents) -> Blobs {
        let all = contents.into_iter().map(|(key, blob)| (key, Arc::new(Mutex::new(blob)))).collect();
        Blobs { all, untold: Vec::new() }
    }
}

/// The storage of votes. Clones are the same.
#[derive(Clone)]
pub struct Votes {
    blobs: Arc<Mutex<Blobs>>,
    requests: mpsc::UnboundedSender<Request>,
}

impl Votes {
    pub(super) fn new(blobs: Blobs, requests: mpsc::UnboundedSender<Request>) -> Votes {
        Votes { blobs: Arc::new(Mutex::new(blobs)), requests }
    }

    /// Forgets all partitions but those that `stays` names; durable with the next sync.
    pub fn retain(&self, stays: impl Fn(&str) -> bool) {
        let mut blobs = locked(&self.blobs);
        let gone: Vec<Key> = blobs.all.keys().filter(|(partition, _)| !stays(partition)).cloned().collect();
        for key in gone {
            blobs.all.remove(&key);
            blobs.untold.push(Change::Remove { key });
        }
    }

    /// Asks for everything until now to be made durable. The writer does what it is asked in order, so an earlier request is done before.
    fn ask(&self) -> oneshot::Receiver<Result<(), weir_order::Error>> {
        let (done, is_done) = oneshot::channel();
        let mut blobs = locked(&self.blobs);
        let changes = std::mem::take(&mut blobs.untold);
        // Sent under the lock, or a later one might overtake it. Without a writer the sender of the answer is dropped, which is an answer.
        let _ended = self.requests.send(Request { changes, done });
        is_done
    }
}

async fn answered(answer: oneshot::Receiver<Result<(), weir_order::Error>>) -> Result<(), Error> {
    match answer.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Error::from(std::io::Error::other(error.to_string()))),
        Err(_) => Err(Error::Closed),
    }
}

fn hex(name: &[u8]) -> String {
    name.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Storage for Votes {
    type Blob = Votebox;

    async fn open_versioned(
        &self,
        partition: &str,
        name: &[u8],
        versions: RangeInclusive<BlobVersion>,
    ) -> Result<(Votebox, u64, BlobVersion), Error> {
        if !versions.contains(&VERSION) {
            return Err(Error::BlobVersionMismatch { expected: versions, found: VERSION });
        }
        if partition.len() > NAME_BYTES_MAX || name.len() > NAME_BYTES_MAX {
            return Err(Error::PartitionNameInvalid(partition.to_owned()));
        }
        let key = (partition.to_owned(), name.to_vec());
        let mut blobs = locked(&self.blobs);
        if !blobs.all.contains_key(&key) {
            blobs.untold.push(Change::Resize { key: key.clone(), length: 0 });
        }
        let content = Arc::clone(blobs.all.entry(key.clone()).or_default());
        // One is in the table, one is here.
        if Arc::strong_count(&content) > 2 {
            return Err(Error::BlobAlreadyOpen(key.0, hex(&key.1)));
        }
        let length = locked(&content).len() as u64;
        drop(blobs);
        Ok((Votebox { key, content, votes: self.clone() }, length, VERSION))
    }

    async fn remove(&self, partition: &str, name: Option<&[u8]>) -> Result<(), Error> {
        let mut blobs = locked(&self.blobs);
        let keys: Vec<Key> = match name {
            Some(name) => vec![(partition.to_owned(), name.to_vec())],
            None => blobs.all.keys().filter(|(of, _)| of == partition).cloned().collect(),
        };
        if keys.is_empty() {
            return Err(Error::PartitionMissing(partition.to_owned()));
        }
        for key in keys {
            if blobs.all.remove(&key).is_none() {
                return Err(Error::BlobMissing(key.0, hex(&key.1)));
            }
            blobs.untold.push(Change::Remove { key });
        }
        Ok(())
    }

    async fn scan(&self, partition: &str) -> Result<Vec<Vec<u8>>, Error> {
        let blobs = locked(&self.blobs);
        let names: Vec<Vec<u8>> =
            blobs.all.keys().filter(|(of, _)| of == partition).map(|(_, name)| name.clone()).collect();
        if names.is_empty() { Err(Error::PartitionMissing(partition.to_owned())) } else { Ok(names) }
    }
}

/// An open blob of votes.
pub struct Votebox {
    key: Key,
    content: Content,
    votes: Votes,
}

impl Votebox {
    /// Changes the bytes, and remembers to tell of it unless the blob is removed.
    fn change(&self, does: impl FnOnce(&mut Vec<u8>), changes: impl IntoIterator<Item = Change>) {
        let mut blobs = locked(&self.votes.blobs);
        does(&mut locked(&self.content));
        let live = blobs.all.get(&self.key).is_some_and(|content| Arc::ptr_eq(content, &self.content));
        if live {
            blobs.untold.extend(changes);
        }
    }

    fn bytes(&self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let content = locked(&self.content);
        let begin = usize::try_from(offset).map_err(|_| Error::OffsetOverflow)?;
        let end = begin.checked_add(length).ok_or(Error::OffsetOverflow)?;
        content.get(begin..end).map(<[u8]>::to_vec).ok_or(Error::BlobInsufficientLength)
    }
}

impl Blob for Votebox {
    async fn read_at_buf(
        &self,
        offset: u64,
        len: usize,
        bufs: impl Into<IoBufsMut> + Send,
        _options: ReadOptions,
    ) -> Result<IoBufsMut, Error> {
        let mut bufs = bufs.into();
        let bytes = self.bytes(offset, len)?;
        if bufs.is_empty() {
            bufs.put_slice(&bytes);
        } else if bufs.len() == len {
            bufs.copy_from_slice(&bytes);
        } else {
            bufs = IoBufsMut::from(bytes);
        }
        Ok(bufs)
    }

    async fn read_at(&self, offset: u64, len: usize, _options: ReadOptions) -> Result<IoBufsMut, Error> {
        Ok(IoBufsMut::from(self.bytes(offset, len)?))
    }

    async fn write_at(
        &self,
        offset: u64,
        bufs: impl Into<IoBufs> + Send,
        options: WriteOptions,
    ) -> Result<(), Error> {
        let mut bufs: IoBufs = bufs.into();
        let bytes = bufs.copy_to_bytes(bufs.remaining());
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= BLOB_BYTES_MAX);
        if end.is_none() {
            return Err(Error::OffsetOverflow);
        }
        let piece = |begin: usize| Change::Write {
            key: self.key.clone(),
            offset: offset + begin as u64,
            bytes: bytes.slice(begin..bytes.len().min(begin + PIECE_BYTES_MAX)),
        };
        let pieces: Vec<Change> = (0..bytes.len()).step_by(PIECE_BYTES_MAX).map(piece).collect();
        self.change(|content| write(content, offset as usize, &bytes), pieces);
        if options.contains(WriteOptions::SYNC) { self.sync().await } else { Ok(()) }
    }

    async fn resize(&self, len: u64) -> Result<(), Error> {
        if len > BLOB_BYTES_MAX {
            return Err(Error::OffsetOverflow);
        }
        let change = Change::Resize { key: self.key.clone(), length: len };
        self.change(|content| content.resize(len as usize, 0), [change]);
        Ok(())
    }

    async fn sync(&self) -> Result<(), Error> {
        answered(self.votes.ask()).await
    }

    async fn start_sync(&self) -> Handle<()> {
        Handle::from_future(answered(self.votes.ask()))
    }
}
