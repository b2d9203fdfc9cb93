# shellcheck shell=bash
# Sourced by proof.sh: FileWall before the kernel's NFS server, and files in user space, both as units with the settings of
# weir-controller.service as far as what they do allows them: what gives a unit mounts of its own (Protect…=) would hide those of weir fs
# from everybody else, and what chooses devices would keep /dev/fuse from it.
confined=(-p NoNewPrivileges=yes -p RestrictRealtime=yes -p RestrictSUIDSGID=yes -p LockPersonality=yes -p MemoryDenyWriteExecute=yes
  -p SystemCallArchitectures=native -p SystemCallErrorNumber=EPERM)
mkdir -p /export /mnt/wall /mnt/mem /etc/weir/filewall
chmod 777 /export
seq 1 20000 > /export/numbers

if modprobe nfsd 2>/dev/null && command -v rpc.nfsd >/dev/null; then
  cat > /etc/weir/filewall/policies.yaml <<'YAML'
kind: read-only
name: kept
paths: [/kept]
YAML
  mkdir -p /export/kept && chmod 777 /export/kept && echo kept > /export/kept/file
  mount -t nfsd nfsd /proc/fs/nfsd 2>/dev/null
  mkdir -p /run/rpcbind && rpcbind -w 2>/dev/null
  exportfs -o rw,no_root_squash,insecure,fsid=0,no_subtree_check '*:/export'
  rpc.nfsd -p 12049 --no-udp 2 2>/dev/null || rpc.nfsd -p 12049 2
  rpc.mountd -p 20048
  systemd-run --quiet --unit=weir-filewall "${confined[@]}" -p DynamicUser=yes -p StateDirectory=weir-filewall \
    -p AmbientCapabilities=CAP_NET_BIND_SERVICE -p CapabilityBoundingSet=CAP_NET_BIND_SERVICE -p ProtectSystem=strict -p ProtectHome=yes \
    -p PrivateTmp=yes -p PrivateDevices=yes -p ProtectKernelTunables=yes -p ProtectKernelModules=yes -p ProtectClock=yes \
    -p ProtectHostname=yes -p RestrictNamespaces=yes \
    -p 'RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX' -p SystemCallFilter=@system-service -p 'SystemCallFilter=~@privileged @resources' \
    weir filewall --server 'nfs://127.0.0.1/export?nfsport=12049&mountport=20048' --listen 127.0.0.1 --no-portmap --policy /etc/weir/filewall
  check "weir filewall starts" systemctl is-active weir-filewall
  check "the kernel's client mounts by it" mount -t nfs -o vers=3,nolock,proto=tcp,mountproto=tcp,port=2049,mountport=2049,soft,timeo=50 127.0.0.1:/export /mnt/wall
  check "files are the same by it" cmp /export/numbers /mnt/wall/numbers
  check "what is written by it is there" sh -c 'seq 1 30000 > /mnt/wall/new && sync /mnt/wall/new && cmp /mnt/wall/new /export/new'
  check "its policy refuses" sh -c '! touch /mnt/wall/kept/file && grep -q kept /export/kept/file'
  check "it lives" systemctl is-active weir-filewall
  umount -l /mnt/wall
else
  not_run "weir filewall before the kernel's NFS server" "the kernel has no nfsd, or nfs-kernel-server is not installed"
fi

if [ -e /dev/fuse ]; then
  systemd-run --quiet --unit=weir-files "${confined[@]}" -p 'SystemCallFilter=@system-service @mount' \
    weir fs serve --backend mem: /mnt/mem
  check "weir fs serve mounts" mountpoint -q /mnt/mem
  [ -n "$(mount -t fuse)" ] || journalctl --no-pager -n 10 -u weir-files
  check "files by the kernel" sh -c 'cp /export/numbers /mnt/mem/one && cmp /mnt/mem/one /export/numbers'
  check "files by an accelerated program" weir fs run -- sh -c 'cat /mnt/mem/one > /mnt/mem/two && cmp /mnt/mem/one /mnt/mem/two'
  check "both see the same" cmp /mnt/mem/two /export/numbers
  check "weir fs status answers" weir fs status
  check "it is unmounted" weir fs unmount /mnt/mem
else
  not_run "weir fs serve" "there is no /dev/fuse"
fi
