//! The code that is put into foreign processes, as the build made it (`blob/`).

use crate::error::Error;
use crate::images::{CALLS_MAX, Wanted};
use crate::memory::Memory;

const MAGIC: u64 = 0x3142_4f4c_4252_4557;
const PAGE_BYTES: usize = 4096;
/// Places in `struct configuration` of `blob/weir.h`.
const INJECTOR: usize = 64;
const INJECTOR_BYTES_MAX: usize = 107;
const INJECTOR_BYTES: usize = 176;
const CLIENT_BYTES: usize = 180;
const CLIENT: usize = 184;
const CLASS_BITS: u8 = 3;
const UNSEEN_SHIFT: u8 = 2;
/// Most bytes that a client may be told.
pub const CLIENT_BYTES_MAX: usize = 2048;

/// A blob that fits the machine.
#[derive(Debug, Clone)]
pub struct Blob {
    image: Vec<u8>,
    /// Bytes that it takes in a process: the image, and zeros.
    end: u64,
    begin: u64,
    boot: Vec<u8>,
    configuration: usize,
    wanted: Wanted,
}

impl Blob {
    /// Takes a blob that a build script made.
    ///
    /// # Errors
    /// On machines for which there is none.
    pub fn new(image: &[u8]) -> Result<Blob, Error> {
        let word = |index: usize| {
            let bytes = image.get(index * 8..index * 8 + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let table = |index: usize| -> Option<[u8; CALLS_MAX]> {
            let at = word(index)? as usize;
            image.get(at..at + CALLS_MAX)?.try_into().ok()
        };
        let boot = || Some(image.get(word(7)? as usize..word(8)? as usize)?.to_vec());
        let words = || Some([word(0)?, word(1)?, word(2)?, word(3)?, word(4)?]);
        let head = || Some((words()?, [table(5)?, table(6)?], boot()?));
        let Some(([magic, begin, data, end, configuration], calls, boot)) = head() else {
            return Err(Error::Machine("there is no blob for this processor, only for x86-64"));
        };
        assert!(magic == MAGIC && data < end && end % PAGE_BYTES as u64 == 0, "the build made a sound blob");
        let mut image = image.to_vec();
        // The configuration is written to; zeros behind the last other byte are in every new mapping.
        let used = image.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        image.resize(used.max(configuration as usize + CLIENT + CLIENT_BYTES_MAX), 0);
        let calls: [u8; CALLS_MAX] = std::array::from_fn(|number| calls[0][number] | calls[1][number]);
        let wanted = Wanted {
            classes: calls.map(|call| call & CLASS_BITS),
            unseen: calls.map(|call| call >> UNSEEN_SHIFT & CLASS_BITS),
        };
        Ok(Blob { image, end, begin, boot, configuration: configuration as usize, wanted })
    }

    /// The blob of this crate, whose client serves nothing.
    ///
    /// # Errors
    /// As [`Blob::new`].
    pub fn pass_through() -> Result<Blob, Error> {
        Blob::new(include_bytes!(concat!(env!("OUT_DIR"), "/none.blob")))
    }

    /// What a process runs first, wherever it is put: `weir_boot` of `blob/entry.S`.
    pub(crate) fn boot(&self) -> &[u8] {
        &self.boot
    }

    /// The bytes that are the same for all processes, for them to map.
    ///
    /// # Errors
    /// When there is no memory.
    pub(crate) fn memory(&self) -> Result<Memory, Error> {
        Memory::new("weir", self.end, &[(0, &self.image)])
            .map_err(|error| Error::io("making memory for the code in programs", error))
    }

    /// Where it begins to run.
    pub(crate) fn begin(&self) -> u64 {
        self.begin
    }

    /// Which calls it wants to see.
    pub(crate) fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        let at = self.configuration + at;
        self.image[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Tells it the injector's socket and what its client shall know.
    ///
    /// # Errors
    /// When either is too long.
    pub fn configure(&mut self, injector: &str, client: &[u8]) -> Result<(), Error> {
        if injector.len() > INJECTOR_BYTES_MAX || client.len() > CLIENT_BYTES_MAX {
            return Err(Error::Refused("its configuration is too long".to_owned()));
        }
        self.put(INJECTOR, injector.as_bytes());
        self.put(INJECTOR_BYTES, &(injector.len() as u32).to_le_bytes());
        self.put(CLIENT_BYTES, &(client.len() as u32).to_le_bytes());
        self.put(CLIENT, client);
        Ok(())
    }
}
