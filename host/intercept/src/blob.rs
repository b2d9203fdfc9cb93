//! The code that is put into foreign processes, as the build made it (`blob/`).

use crate::error::Error;

const MAGIC: u64 = 0x3142_4f4c_4252_4557;
const PAGE_BYTES: usize = 4096;
/// Places in `struct configuration` of `blob/weir.h`.
const PROGRAM_ENTRY: usize = 8;
const INJECTOR: usize = 64;
const INJECTOR_BYTES_MAX: usize = 107;
const INJECTOR_BYTES: usize = 176;
const CLIENT_BYTES: usize = 180;
const CLIENT: usize = 184;
const PLACES: usize = CLIENT + CLIENT_BYTES_MAX;
const PLACES_BYTES: usize = PLACES + 8;
/// Most bytes that a client may be told.
pub const CLIENT_BYTES_MAX: usize = 2048;

/// A blob that fits the machine.
#[derive(Debug, Clone)]
pub struct Blob {
    image: Vec<u8>,
    /// Bytes that it takes in a process: the image, and zeros.
    end: u64,
    begin: u64,
    data: u64,
    configuration: usize,
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
        let head = || Some((word(0)?, word(1)?, word(2)?, word(3)?, word(4)?));
        let Some((magic, begin, data, end, configuration)) = head() else {
            return Err(Error::Machine("there is no blob for this processor, only for x86-64"));
        };
        assert!(magic == MAGIC && data < end && end % PAGE_BYTES as u64 == 0, "the build made a sound blob");
        let mut image = image.to_vec();
        // The configuration is written to; zeros behind the last other byte are in every new mapping.
        let used = image.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        image.resize(used.max(configuration as usize + PLACES_BYTES + 8), 0);
        Ok(Blob { image, end, begin, data, configuration: configuration as usize })
    }

    /// The blob of this crate, whose client serves nothing.
    ///
    /// # Errors
    /// As [`Blob::new`].
    pub fn pass_through() -> Result<Blob, Error> {
        Blob::new(include_bytes!(concat!(env!("OUT_DIR"), "/none.blob")))
    }

    /// Bytes that it takes in a process.
    pub(crate) fn bytes(&self) -> u64 {
        self.end
    }

    /// Where it begins to run.
    pub(crate) fn begin(&self) -> u64 {
        self.begin
    }

    /// Where the part begins that is written to.
    pub(crate) fn data(&self) -> u64 {
        self.data
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

    /// The bytes for a process whose program begins at `entry`, which has `places_bytes` of places at `places`.
    pub(crate) fn image_for(&self, entry: u64, places: u64, places_bytes: u64) -> Vec<u8> {
        let mut own = self.clone();
        own.put(PROGRAM_ENTRY, &entry.to_le_bytes());
        own.put(PLACES, &places.to_le_bytes());
        own.put(PLACES_BYTES, &places_bytes.to_le_bytes());
        own.image
    }
}
