//! Exit codes, for scripts. The table is in `docs/operate/exit-codes.md`, and a test holds both together.

use std::process::ExitCode;

/// How a command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// It is done.
    Done = 0,
    /// It was refused, or it failed: nothing, or not all, is done.
    Failed = 1,
    /// The command line or a file is wrong: nothing was asked of anybody.
    Usage = 2,
    /// Who was asked cannot be reached.
    Unreachable = 3,
    /// The answer is no.
    No = 4,
    /// It is done, and not in force everywhere within the time given; or it waits for the approval of other operators.
    NotInForce = 5,
}

impl Exit {
    /// Every one.
    #[cfg(test)]
    pub const ALL: [Exit; 6] =
        [Exit::Done, Exit::Failed, Exit::Usage, Exit::Unreachable, Exit::No, Exit::NotInForce];
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}
