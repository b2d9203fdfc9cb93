//! Where the files of policies are.

use std::path::Path;

/// The folder of policies, where relative paths begin.
#[derive(Clone, Copy, Debug)]
pub struct Home<'a> {
    /// The folder.
    pub folder: &'a Path,
    /// Whether keys, states and logs there are made, locked and written. A chain that only answers questions leaves them alone, for they may be
    /// those of a FileWall that runs.
    pub keeps: bool,
}

impl<'a> Home<'a> {
    /// Of a chain that is put in force.
    pub fn kept(folder: &'a Path) -> Home<'a> {
        Home { folder, keeps: true }
    }
}
