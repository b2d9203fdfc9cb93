#!/usr/bin/env bash
# Proves that nothing is missing from the install steps: runs make targets in a fresh Debian 12 root.
#
#   fresh-machine.sh [TARGET...]      default: lab lab-down test
#   WEIR_FRESH_DIR=FOLDER             where the root is made (default: a new folder in /var/tmp)
#   WEIR_FRESH_CACHE=FILE.tar         keep the bare root there and take it from there the next time
#
# The root is made by debootstrap from this machine's own apt sources. Of this machine it sees nothing but the Rust
# toolchain, cargo's downloads and settings, the certificates that downloads need, and a copy of this repository.
# Everything mounted is mounted in a mount namespace of its own, and every process lives in a pid namespace of its
# own: both are gone when this ends, however it ends, and only then is the folder deleted.
set -euo pipefail

suite=bookworm
here=$(cd "$(dirname "$0")/.." && pwd)
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(lab lab-down test)

die() { echo "fresh-machine: $*" >&2; exit 1; }
say() { echo "fresh-machine: $*"; }

[ "$(id -u)" = 0 ] || die "this needs root: run it with sudo or as root"
for tool in debootstrap unshare git tar; do
  command -v "$tool" >/dev/null || die "$tool is not installed: apt-get install debootstrap util-linux git tar"
done
cargo_home=${CARGO_HOME:-$HOME/.cargo}
rustup_home=${RUSTUP_HOME:-$HOME/.rustup}
[ -x "$cargo_home/bin/cargo" ] || die "no cargo in $cargo_home/bin: set CARGO_HOME, or install Rust with rustup"
[ -d "$rustup_home/toolchains" ] || die "no toolchain in $rustup_home: set RUSTUP_HOME, or install Rust with rustup"

work=$(mktemp -d "${WEIR_FRESH_DIR:-/var/tmp}/weir-fresh.XXXXXX")
root=$work/root
# shellcheck source=packaging/debian-root.sh
. "$here/packaging/debian-root.sh"
clean_up() {
  # Mounts belong to the namespace that is gone. Should one be here all the same, nothing behind it may be deleted.
  if grep -qF " $work/" /proc/self/mountinfo; then
    echo "fresh-machine: $work is still mounted and is left alone" >&2
    return
  fi
  rm -rf --one-file-system "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

copy_inputs() {
  mkdir -p "$root/src/weir" "$root$cargo_home" "$root$rustup_home"
  git -C "$here" ls-files -z --cached --others --exclude-standard |
    (cd "$here" && xargs -0 ls -d 2>/dev/null | tar -cf - -T -) | tar -C "$root/src/weir" -xf -
  cp -L /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
  # Certificates of a machine that downloads through its own authority.
  if [ -n "${SSL_CERT_FILE:-}" ] && [ -f "$SSL_CERT_FILE" ]; then
    cp -L "$SSL_CERT_FILE" "$root/etc/ssl/machine-certificates.pem"
  fi
}

# Runs inside the new mount and pid namespaces: mounts, then the command in the root.
# shellcheck disable=SC2016  # the dollars belong to the shell inside
enter='
set -euo pipefail
root=$1 cargo_home=$2 rustup_home=$3; shift 3
mount --make-rprivate /
# A mount point of its own: `ip netns` changes how the root is mounted, which a plain folder refuses.
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount --rbind /dev "$root/dev"
mount --bind "$cargo_home" "$root$cargo_home"
mount --bind "$rustup_home" "$root$rustup_home"
mount -o remount,bind,ro "$root$rustup_home"
exec chroot "$root" /usr/bin/env -i "$@"
'

in_root() { # a command line for bash in the copied repository
  local environment=(
    HOME=/root USER=root TERM="${TERM:-dumb}" LANG=C.UTF-8 CI=true
    PATH="$cargo_home/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    CARGO_HOME="$cargo_home" RUSTUP_HOME="$rustup_home"
  )
  local name
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [ -z "${!name:-}" ] || environment+=("$name=${!name}")
  done
  if [ -f "$root/etc/ssl/machine-certificates.pem" ]; then
    environment+=(SSL_CERT_FILE=/etc/ssl/machine-certificates.pem CARGO_HTTP_CAINFO=/etc/ssl/machine-certificates.pem)
  fi
  unshare --mount --pid --fork --kill-child \
    bash -c "$enter" enter "$root" "$cargo_home" "$rustup_home" "${environment[@]}" \
    bash -c "cd /src/weir && $1" </dev/null
}

make_root
copy_inputs
# One namespace for all of them: what 'lab' leaves running is there for 'lab-down'.
# shellcheck disable=SC2016  # the dollars belong to the shell inside
in_root "$(printf 'set -- %s; ' "$(printf '%q ' "${targets[@]}")")"'
  for target; do
    echo "fresh-machine: make $target"
    begin=$SECONDS
    make "$target" || { echo "fresh-machine: make $target failed"; exit 1; }
    echo "fresh-machine: make $target took $((SECONDS - begin)) s"
  done' || die "failed in a fresh $suite"
say "done: ${targets[*]}"
