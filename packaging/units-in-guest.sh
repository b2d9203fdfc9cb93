#!/usr/bin/env bash
# Proves the units for systemd: boots Debian 12 in a virtual machine with them, the example settings and the binary,
# as docs/operate says, and lets guest/proof.sh use and break them there.
#
#   units-in-guest.sh [BINARY]        default: target/release/weir
#   WEIR_GUEST_LOG=FILE               where the guest's console goes (default: in a folder that is deleted)
#   WEIR_GUEST_QMP=SOCKET             QEMU's monitor protocol, to pause it by while the machine is needed for something else
#   WEIR_GUEST_ONLY=monitor           the monitor's part alone
#   WEIR_GUEST_LIMIT_S=N              how long the guest may take (default 1500)
#
# Needs root, debootstrap, qemu-system-x86 and e2fsprogs. The guest has no network; QEMU runs without KVM if there
# is none, so a run takes a few minutes.
set -euo pipefail

suite=bookworm
here=$(cd "$(dirname "$0")/.." && pwd)
binary=${1:-$here/target/release/weir}
limit_s=${WEIR_GUEST_LIMIT_S:-1500}

die() { echo "units-in-guest: $*" >&2; exit 1; }
say() { echo "units-in-guest: $*"; }

[ "$(id -u)" = 0 ] || die "this needs root: run it with sudo or as root"
for tool in debootstrap qemu-system-x86_64 mke2fs strip; do
  command -v "$tool" >/dev/null || die "$tool is not installed: apt-get install debootstrap qemu-system-x86 e2fsprogs binutils"
done
[ -x "$binary" ] || die "$binary is not there: make build"

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

# Packages of a machine with systemd, and the kernel that Debian has for virtual machines: the newer one of its backports,
# because ports of kind af-xdp need Linux 6.6.
install_system() {
  local packages=(systemd-sysv udev kmod iproute2 iputils-ping udhcpc initramfs-tools
    stress-ng earlyoom systemd-oomd dbus) # loads for the monitor, and others that act on them; systemd-oomd ends without dbus
  cp -L /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
  awk -v s="$suite" '$3 == s { print $1, $2, s "-backports", "main"; exit }' "$root/etc/apt/sources.list.d/debian.list" \
    > "$root/etc/apt/sources.list.d/backports.list"
  cat > "$root/etc/apt/apt.conf.d/99guest" <<'CONF'
APT::Sandbox::User "root";
APT::Install-Recommends "false";
CONF
  # shellcheck disable=SC2016  # the dollars belong to the shell inside
  unshare --mount --pid --fork --kill-child bash -c '
    set -e; root=$1; suite=$2; shift 2
    mount --make-rprivate /; mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"
    export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
    chroot "$root" apt-get -q update
    chroot "$root" apt-get -q -y install "$@"
    chroot "$root" apt-get -q -y -t "$suite-backports" install linux-image-cloud-amd64
  ' install "$root" "$suite" "${packages[@]}" </dev/null > "$work/apt.log" 2>&1 || { tail -20 "$work/apt.log" >&2; die "installing packages failed"; }
}

# What docs/operate tells a person to do.
install_weir() {
  install -D -m 755 "$binary" "$root/usr/bin/weir"
  strip "$root/usr/bin/weir"
  install -D -m 644 -t "$root/lib/systemd/system" "$here"/packaging/*.service
  install -d -m 755 "$root/etc/weir"
  install -m 644 "$here"/packaging/examples/*.yaml "$root/etc/weir/"
  # The first start of everything is the proof's own.
  install -D -m 755 "$here/packaging/guest/proof.sh" "$root/usr/local/sbin/weir-proof"
  install -D -m 755 "$here/packaging/guest/monitor.sh" "$root/usr/local/sbin/weir-proof-monitor"
  install -m 644 "$here/packaging/guest/proof.service" "$root/etc/systemd/system/weir-proof.service"
  install -m 644 "$here/packaging/guest/net.yaml" "$root/root/net.yaml"
  mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
  # Others that kill hogs run only when it is their turn.
  ln -sf /dev/null "$root/etc/systemd/system/earlyoom.service"
  ln -sf /dev/null "$root/etc/systemd/system/systemd-oomd.service"
  # No login on the console, which the proof writes to.
  ln -sf /dev/null "$root/etc/systemd/system/serial-getty@ttyS0.service"
  ln -sf ../weir-proof.service "$root/etc/systemd/system/multi-user.target.wants/weir-proof.service"
}

boot() {
  local image=$work/disk.ext4 kernel initrd accel=tcg,thread=multi
  kernel=$(echo "$root"/boot/vmlinuz-*) initrd=$(echo "$root"/boot/initrd.img-*)
  cp "$kernel" "$work/vmlinuz"
  cp "$initrd" "$work/initrd"
  mke2fs -q -t ext4 -d "$root" "$image" 3G
  if [ -w /dev/kvm ] && timeout 5 qemu-system-x86_64 -accel kvm -M none -display none -monitor stdio </dev/null >/dev/null 2>&1; then accel=kvm; fi
  say "booting with $accel"
  local qmp=()
  [ -z "${WEIR_GUEST_QMP:-}" ] || qmp=(-qmp "unix:$WEIR_GUEST_QMP,server=on,wait=off")
  timeout -k 5 "$limit_s" qemu-system-x86_64 -accel "$accel" -cpu max -M q35 -smp 2 -m 1024 -nodefaults -no-user-config -no-reboot \
    -display none -serial "file:$console" -kernel "$work/vmlinuz" -initrd "$work/initrd" \
    -append "root=/dev/vda rw console=ttyS0 quiet panic=-1 mitigations=off audit=0 systemd.show_status=0 ${WEIR_GUEST_ONLY:+weir.proof=$WEIR_GUEST_ONLY}" \
    -drive "file=$image,format=raw,if=virtio,cache=unsafe" -device virtio-rng-pci "${qmp[@]}" </dev/null || true
}

make_root
say "installing systemd and a kernel"
install_system
install_weir
boot
tr -d '\r' < "$console" | grep -aE '^((ok|FAILED|proof):? |RESULT )' || true
tr -d '\r' < "$console" | grep -aq '^proof: all held$' || { tail -40 "$console" >&2; die "not everything held (or the guest ended first)"; }
say "done"
