//! Programs of a lab see the machine's `/etc`, and what they write there is theirs alone.
//!
//! `ip netns exec` gives a program mounts of its own, and the files of `/etc/netns/NAME/` in place of those of `/etc`. All else in `/etc`
//! would be the machine's: a DHCP client whose hook writes another file, or replaces one by renaming, changes the machine. So `/etc` becomes
//! an overlay first, with its changes in memory (a copy, where there is no overlay), and the files of `/etc/netns/NAME/` are put over that:
//! these are the lab's own, and a lab reads in them what its programs were told.
//!
//! Invariants
//! - The program keeps the process id that it was started with.
//! - Nothing of it outlasts the program: it is in its mounts.
//! - Without it no program is started: a step that fails ends the start, in words.

use std::ffi::OsString;

/// Where the changes are, in the program's own mounts. On the machine it is an empty directory.
const FOLDER: &str = "/run/weir-lab/private";

/// What becomes the program: `$1` is the directory above, `$2` the namespace, what follows is the program. Files of `/etc` that are mounts of
/// their own, as in containers, are not in the overlay's lower layer, so their text goes along.
const SCRIPT: &str = r#"set -e
at=$1 netns=$2; shift 2
mkdir -p "$at"
mount -t tmpfs -o mode=755 tmpfs "$at"
mkdir "$at/own" "$at/up" "$at/work" "$at/copy"
if [ -d "/etc/netns/$netns" ]; then mount --bind "/etc/netns/$netns" "$at/own"; fi
for file in hosts hostname resolv.conf; do
  if [ -e "/etc/$file" ]; then cat "/etc/$file" >"$at/up/$file"; fi
done
if ! mount -t overlay overlay -o "lowerdir=/etc,upperdir=$at/up,workdir=$at/work" /etc 2>/dev/null; then
  cp -a /etc/. "$at/copy/"
  mount --bind "$at/copy" /etc
fi
for file in "$at"/own/*; do
  if [ -f "$file" ]; then
    name=/etc/${file##*/}
    [ -f "$name" ] && [ ! -L "$name" ] || { rm -f "$name"; : >"$name"; }
    mount --bind "$file" "$name"
  fi
done
exec "$@""#;

/// The words in front of a program that runs in a namespace.
pub(crate) fn words(netns: &str) -> Vec<OsString> {
    ["ip", "netns", "exec", netns, "sh", "-c", SCRIPT, "private", FOLDER, netns].map(OsString::from).to_vec()
}
