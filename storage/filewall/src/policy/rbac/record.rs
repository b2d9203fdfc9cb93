//! The log of LOG and ALARM: a JSON object a line (paper 4.5.1: "FileWall additionally evaluates the LOG permission and logs the
//! operation if required").

use crate::policy::error::PolicyError;
use crate::policy::log_file;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Length at which the log is renamed to `<file>.1` and begun anew, bytes.
pub const LOG_BYTES_MAX: u64 = 64 << 20;

/// A line.
#[derive(Debug, Serialize)]
pub struct Line {
    /// When.
    pub unix_ms: u64,
    /// `log` or `alarm`.
    pub permission: &'static str,
    /// Machine.
    pub client: String,
    /// User.
    pub user: String,
    /// Active roles.
    pub roles: Vec<String>,
    /// The role that allowed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Operation.
    pub op: &'static str,
    /// The server's handle of the file or folder, hexadecimal.
    pub file: String,
    /// Name in that folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The log. A line is in the kernel's hands before its call goes on.
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
    file: Mutex<(File, u64)>,
}

impl Record {
    /// Opens it, or makes it.
    ///
    /// # Errors
    /// [`PolicyError::File`].
    pub fn open(path: &Path) -> Result<Record, PolicyError> {
        let wrong = PolicyError::file("log file", path);
        let file = log_file(path).map_err(&wrong)?;
        let bytes = file.metadata().map_err(&wrong)?.len();
        Ok(Record { path: path.to_path_buf(), file: Mutex::new((file, bytes)) })
    }

    /// Appends a line. What the disk does not take is said in the log of the process.
    pub fn put(&self, line: &Line) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.write(&mut file, line) {
            tracing::error!(%error, path = %self.path.display(), "a line of the log is lost");
        }
    }

    fn write(&self, (file, bytes): &mut (File, u64), line: &Line) -> std::io::Result<()> {
        if *bytes > LOG_BYTES_MAX {
            let mut old = self.path.as_os_str().to_owned();
            old.push(".1");
            std::fs::rename(&self.path, old)?;
            *file = log_file(&self.path)?;
            *bytes = 0;
        }
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        *bytes += text.len() as u64;
        file.write_all(&text)
    }
}
