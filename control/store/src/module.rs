//! A loaded procedure, as the state has it.

use crate::{ProcedureInfo, ProcedureLimits};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use weir_model::Version;

/// Largest module, bytes.
pub const MODULE_BYTES_MAX: usize = 512 * 1024;

/// A loaded module, as the state has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Module {
    pub version: Version,
    pub limits: ProcedureLimits,
    pub hash: [u8; 32],
    pub bytes: Vec<u8>,
}

impl Module {
    pub fn new(version: Version, limits: ProcedureLimits, bytes: Vec<u8>) -> Module {
        Module { version, limits, hash: Sha256::digest(&bytes).into(), bytes }
    }

    pub fn info(&self, name: &str) -> ProcedureInfo {
        let (version, bytes, hash) = (self.version, self.bytes.len() as u64, self.hash);
        ProcedureInfo { procedure: name.to_owned(), version, bytes, hash }
    }
}
