#!/usr/bin/env bash
# Proves the units for systemd: boots Debian 12 in a virtual machine with them, the example settings and the binary,
# as docs/operate says, and lets guest/proof.sh use and break them there. Prints a table; ends with 0 when all held, or when it is NOT RUN.
#
#   units-in-guest.sh [BINARY]        default: target/release/weir
#   WEIR_GUEST_LOG=FILE               where the guest's console goes (default: in a folder that is deleted)
#   WEIR_GUEST_QMP=SOCKET             QEMU's monitor protocol, to pause it by while the machine is needed for something else
#   WEIR_GUEST_PARTS=ports,refused    these parts alone, of ports, refused, monitor and files
#   WEIR_GUEST_FIGURES=1              the monitor beside others that end memory hogs too
#   WEIR_GUEST_CACHE=FOLDER           where Debian's root for the guest is kept between runs (default: /var/cache/weir/units)
#   WEIR_GUEST_EXTRA='FILE ARGUMENT…' a program that the guest runs at the end; it holds if its exit code is 0 and it says of nothing NOT RUN
#   WEIR_GUEST_LIMIT_S=N              how long the guest may take (default 1500, with figures 3000)
#   WEIR_GUEST_PATIENCE_S=N           how long a check may take (default 120): more where the machine has much else to do
#
# Needs root, debootstrap, qemu-system-x86 and e2fsprogs, 2 GB of memory and, the first time, Debian's packages. The guest has no network;
# QEMU runs without KVM if there is none that works, so a run takes a few minutes.
set -euo pipefail

suite=bookworm
here=$(cd "$(dirname "$0")/.." && pwd)
binary=${1:-$here/target/release/weir}
limit_s=${WEIR_GUEST_LIMIT_S:-$([ -n "${WEIR_GUEST_FIGURES:-}" ] && echo 3000 || echo 1500)}
cache=${WEIR_GUEST_CACHE:-/var/cache/weir/units}
memory_mib=1024

die() { echo "units-in-guest: $*" >&2; exit 1; }
say() { echo "units-in-guest: $*"; }
skip() { echo "NOT RUN units-in-guest: $*"; exit 0; }

[ "$(id -u)" = 0 ] || skip "this needs root: run it with sudo or as root"
for tool in debootstrap qemu-system-x86_64 mke2fs strip; do
  command -v "$tool" >/dev/null || skip "$tool is not installed: apt-get install debootstrap qemu-system-x86 e2fsprogs binutils"
done
[ -x "$binary" ] || die "$binary is not there: make build"
[ "$(awk '/MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)" -ge $((memory_mib * 2)) ] || skip "it needs $((memory_mib * 2)) MiB of memory"

work=$(mktemp -d /var/tmp/weir-guest.XXXXXX)
root=$work/root
# shellcheck source=packaging/debian-root.sh
. "$here/packaging/debian-root.sh"
console=${WEIR_GUEST_LOG:-$work/console.log}
clean_up() {
  if grep -qF " $work/" /proc/self/mountinfo; then
    echo "units-in-guest: $work is still mounted and is left alone" >&2
    return
  fi
  rm -rf --one-file-system "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# Packages of a machine with systemd: what weir's own checks need, loads for the monitor, and others that act on them (systemd-oomd ends
# without dbus), an NFS server, and Python for a virtual machine's side of vhost-user.
packages=(systemd-sysv udev kmod iproute2 iputils-ping udhcpc initramfs-tools stress-ng earlyoom systemd-oomd dbus
  nfs-kernel-server nfs-common netbase python3-minimal)
# The kernel that Debian has for virtual machines: the newer one of its backports, because ports of kind af-xdp need Linux 6.6.
kernel=linux-image-cloud-amd64

install_system() {
  cp -L /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
  awk -v s="$suite" '$3 == s { print $1, $2, s "-backports", "main"; exit }' "$root/etc/apt/sources.list.d/debian.list" \
    > "$root/etc/apt/sources.list.d/backports.list"
  cat > "$root/etc/apt/apt.conf.d/99guest" <<'CONF'
APT::Sandbox::User "root";
APT::Install-Recommends "false";
CONF
  # What reaches the disk, and no more: an emulated processor unpacks it at every boot.
  mkdir -p "$root/etc/initramfs-tools/conf.d"
  echo MODULES=list > "$root/etc/initramfs-tools/conf.d/guest"
  # shellcheck disable=SC2016  # the dollars belong to the shell inside
  unshare --mount --pid --fork --kill-child bash -c '
    set -e; root=$1; suite=$2; kernel=$3; shift 3
    mount --make-rprivate /; mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"
    export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
    printf "#!/bin/sh\nexit 101\n" > "$root/usr/sbin/policy-rc.d"; chmod 755 "$root/usr/sbin/policy-rc.d"
    chroot "$root" apt-get -q update
    chroot "$root" apt-get -q -y install "$@"
    printf "virtio_pci\nvirtio_blk\next4\n" >> "$root/etc/initramfs-tools/modules"
    chroot "$root" apt-get -q -y -t "$suite-backports" install "$kernel"
    chroot "$root" apt-get -q clean
    rm -rf "$root"/var/lib/apt/lists/* "$root"/usr/share/doc "$root"/usr/share/man "$root"/usr/share/locale "$root/usr/sbin/policy-rc.d"
  ' install "$root" "$suite" "$kernel" "${packages[@]}" </dev/null > "$work/apt.log" 2>&1 || { tail -20 "$work/apt.log" >&2; die "installing packages failed"; }
}

# Debian's root for the guest, from the cache or made anew: of these packages, at most a month old.
make_system() {
  local key kept
  key=$({ printf '%s\n' "$suite" "$kernel" "${packages[@]}"; declare -f make_root install_system; } | sha256sum | cut -c1-16)
  kept=$cache/$key.tar
  if [ -f "$kept" ] && [ -z "$(find "$kept" -mtime +30)" ]; then
    say "unpacking Debian's root from $kept"
    mkdir -p "$root"
    tar -C "$root" -xpf "$kept"
    return
  fi
  make_root
  say "installing systemd and a kernel"
  install_system
  mkdir -p "$cache"
  rm -f "$cache"/*.tar "$cache"/*.new
  tar -C "$root" -cpf "$kept.new" . && mv "$kept.new" "$kept"
}

# What docs/operate tells a person to do, and the proof.
install_weir() {
  install -D -m 755 "$binary" "$root/usr/bin/weir"
  strip "$root/usr/bin/weir"
  install -D -m 644 -t "$root/lib/systemd/system" "$here"/packaging/*.service
  install -d -m 755 "$root/etc/weir"
  install -m 644 "$here"/packaging/examples/*.yaml "$root/etc/weir/"
  # The first start of everything is the proof's own.
  install -D -m 644 -t "$root/usr/local/lib/weir-proof" "$here"/packaging/guest/*
  chmod 755 "$root/usr/local/lib/weir-proof/proof.sh"
  local extra
  read -ra extra <<< "${WEIR_GUEST_EXTRA:-}"
  if [ ${#extra[@]} -gt 0 ]; then
    install -m 755 "${extra[0]}" "$root/usr/local/lib/weir-proof/extra"
    # A script has nothing to strip.
    strip "$root/usr/local/lib/weir-proof/extra" 2>/dev/null || true
    printf '%s\n' "${extra[@]:1}" > "$root/usr/local/lib/weir-proof/extra-arguments"
  fi
  install -m 644 "$here/packaging/guest/weir-proof.service" "$root/etc/systemd/system/weir-proof.service"
  mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
  # Others that kill hogs, and the NFS server, run only when it is their turn. No login on the console, which the proof writes to.
  for unit in earlyoom systemd-oomd nfs-server serial-getty@ttyS0; do ln -sf /dev/null "$root/etc/systemd/system/$unit.service"; done
  ln -sf ../weir-proof.service "$root/etc/systemd/system/multi-user.target.wants/weir-proof.service"
  : > "$root/etc/fstab"
}

# KVM, if this kernel says its first word by it: there are some that take a machine and end, or stop at the first instruction that they do
# not emulate.
accelerator() {
  local said=$work/first-word
  if [ -w /dev/kvm ]; then
    timeout 20 qemu-system-x86_64 -accel kvm -cpu max -M q35 -m 256 -nodefaults -no-user-config -no-reboot -display none \
      -serial "file:$said" -kernel "$work/vmlinuz" -append "console=ttyS0 panic=-1" </dev/null >/dev/null 2>&1 || true
  fi
  if grep -aqs 'Linux version' "$said"; then echo kvm; else echo tcg,thread=multi; fi
}

boot() {
  local image=$work/disk.ext4 accel cpu=max arguments
  cp "$root"/boot/vmlinuz-* "$work/vmlinuz"
  accel=$(accelerator)
  # QEMU 7.2 without KVM leaves wrong flags behind cmpxchg16b, and Linux 6.12 ends by that within seconds.
  [ "$accel" = kvm ] || cpu=max,cx16=off
  cp "$root"/boot/initrd.img-* "$work/initrd"
  mke2fs -q -t ext4 -O ^has_journal -d "$root" "$image" 3G >/dev/null
  rm -rf --one-file-system "$root"
  say "booting with $accel, for $limit_s s at most"
  local qmp=()
  [ -z "${WEIR_GUEST_QMP:-}" ] || qmp=(-qmp "unix:$WEIR_GUEST_QMP,server=on,wait=off")
  arguments="root=/dev/vda rw console=ttyS0 quiet panic=-1 mitigations=off audit=0 no_timer_check systemd.show_status=0"
  arguments+="${WEIR_GUEST_PARTS:+ weir.parts=$WEIR_GUEST_PARTS}${WEIR_GUEST_FIGURES:+ weir.figures}${WEIR_GUEST_PATIENCE_S:+ weir.patience=$WEIR_GUEST_PATIENCE_S}"
  timeout -k 5 "$limit_s" qemu-system-x86_64 -accel "$accel" -cpu "$cpu" -M q35 -smp 2 -m "$memory_mib" -nodefaults -no-user-config -no-reboot \
    -display none -serial "file:$console" -kernel "$work/vmlinuz" -initrd "$work/initrd" -append "$arguments" \
    -drive "file=$image,format=raw,if=virtio,cache=unsafe" -device virtio-rng-pci "${qmp[@]}" </dev/null || true
}

# The rows of the console as a table, with what did not hold in front of its reason.
table() {
  printf '%-8s  %-8s  %5s  %s\n' result part s check
  tr -d '\r' < "$console" | awk -F'|' '
    /^ROW / { sub(/^ROW /, "", $1); sub(/-/, " ", $1); printf "%-8s  %-8s  %5s  %s\n", $1, $2, $4, $3; count[$1]++; next }
    /^RESULT / { print }
    END { printf "%d held, %d did not, %d not run\n", count["ok"], count["FAILED"], count["NOT RUN"] }'
}

begin=$SECONDS
make_system
install_weir
boot
table
tr -d '\r' < "$console" | grep -aq '^proof: all held$' || { tail -60 "$console" >&2; die "not everything held (or the guest ended first)"; }
say "all held, in $((SECONDS - begin)) s"
