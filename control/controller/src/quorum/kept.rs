//! What a member keeps on disk: its share, and its part in the round that goes on. Each file is replaced whole.
//!
//! Both are secret. The directory must be readable by the controller alone.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::Arc;
use weir_base::codec::{decode, encode};
use weir_base::world::Disk;
use weir_model::signed::Digest;
use weir_trust::threshold::Deal;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Largest file, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
const SHARE: &str = "share";
const ROUND: &str = "round";

/// A member's share.
#[derive(Clone, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub struct KeptShare {
    /// Phase of the group whose share it is.
    pub phase: u64,
    /// The secret.
    pub secret: [u8; 32],
}

/// A member's part in a round.
#[derive(Clone, Serialize, Deserialize)]
pub struct KeptRound {
    /// The round.
    pub round: Digest,
    /// Its phase.
    pub phase: u64,
    /// From which what is dealt is made.
    pub seed: Seed,
    /// What was dealt to it and acknowledged.
    pub deals: Vec<Deal>,
}

/// Secret bytes, wiped when dropped.
#[derive(Clone, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub struct Seed(pub [u8; 32]);

/// The files.
pub struct Kept {
    disk: Arc<dyn Disk>,
}

impl Kept {
    /// The files of a directory.
    pub fn new(disk: Arc<dyn Disk>) -> Kept {
        Kept { disk }
    }

    /// The share, if there is one.
    ///
    /// # Errors
    /// The disk's, and `InvalidData`.
    pub fn share(&self) -> io::Result<Option<KeptShare>> {
        self.read(SHARE)
    }

    /// The part in the last round, if there is one.
    ///
    /// # Errors
    /// The disk's, and `InvalidData`.
    pub fn round(&self) -> io::Result<Option<KeptRound>> {
        self.read(ROUND)
    }

    /// Keeps the share instead of the one before.
    ///
    /// # Errors
    /// The disk's.
    pub fn keep_share(&self, share: &KeptShare) -> io::Result<()> {
        self.write(SHARE, &encode(share))
    }

    /// Keeps the part in the round.
    ///
    /// # Errors
    /// The disk's.
    pub fn keep_round(&self, round: &KeptRound) -> io::Result<()> {
        self.write(ROUND, &encode(round))
    }

    /// Forgets the share.
    ///
    /// # Errors
    /// The disk's.
    pub fn forget_share(&self) -> io::Result<()> {
        self.remove(SHARE)
    }

    /// Forgets the part in the round.
    ///
    /// # Errors
    /// The disk's.
    pub fn forget_round(&self) -> io::Result<()> {
        self.remove(ROUND)
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        let file = match self.disk.open(name) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let damaged = |what: String| {
            let text = format!(
                "{name} in {} is damaged ({what}): remove it, and this member gets a new share from the others",
                self.disk.describe()
            );
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        let length = file.len()?;
        if length > FILE_BYTES_MAX {
            return Err(damaged(format!("it has {length} bytes")));
        }
        let mut bytes = zeroize::Zeroizing::new(vec![0; length as usize]);
        let read = file.read_at(0, &mut bytes)?;
        decode(&bytes[..read]).map(Some).map_err(|error| damaged(error.to_string()))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        weir_base::file::replace_at(&*self.disk, name, bytes)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match self.disk.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
