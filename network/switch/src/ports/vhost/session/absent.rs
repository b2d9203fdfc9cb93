//! What a port says while its virtual machine is not there, or is not up yet: no fault of anybody, as machines come and go as they like.
//!
//! Every other reason of such a port is one: the machine is there and carries nothing, or could not be met. The status of a host tells
//! those and not these ([`awaits_guest`]). Reasons go through agents and controllers of other releases as text, so the words are
//! what tells them apart; they are made here alone.

use std::io;
use std::path::Path;

/// Nobody has connected since the port was made.
pub(super) const NOT_YET: &str = "none has come yet";
/// Whoever was connected is not any more, of itself.
pub(super) const GONE: &str = "it has gone";
/// The socket of a monitor that listens is not there, or nobody listens.
pub(super) const NOBODY_LISTENS: &str = "nobody listens there";
/// Queues are taken back because the monitor changes them.
pub(super) const SETTING_UP: &str = "the virtual machine is setting up its device";

const NOBODY: &str = "no virtual machine is at '";
const AT: &str = "the virtual machine at '";
const NOT_STARTED: &str = "' has not started its device";

/// Nobody is at a socket.
pub(super) fn nobody(path: &Path, why: &str) -> String {
    format!("{NOBODY}{}': {why}", path.display())
}

/// A monitor is connected, and its guest's driver has not set up the device.
pub(super) fn not_started(path: &Path) -> String {
    format!("{AT}{}{NOT_STARTED}", path.display())
}

/// Whether connecting failed because nobody is there to connect to.
pub(super) fn is_nobody(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Whether a port's reason says no more than that its virtual machine is not there or not up yet.
pub fn awaits_guest(reason: &str) -> bool {
    let is_away = || {
        let ends = [NOT_YET, GONE, NOBODY_LISTENS];
        reason.starts_with(NOBODY) && ends.iter().any(|end| reason.ends_with(&format!("': {end}")))
    };
    reason == SETTING_UP || (reason.starts_with(AT) && reason.ends_with(NOT_STARTED)) || is_away()
}
