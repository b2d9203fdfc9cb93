# shellcheck shell=bash
# Sourced by proof.sh: traffic by each kind of attachment, and through what is killed and stopped.
ping_to() { ip netns exec red-a ping -c 2 -W 2 "$1"; }
no_other_way() { ! journalctl --no-pager -u weir-host | grep 'another way than was wanted'; }
guest() { # who waits at the other end of a virtual machine's socket
  python3 "$here/vhost.py" "$@" 10.1.0.10
}
switch_pid() { cat /run/weir-host/switch.pid; }

# Each kind of port asks other calls of the kernel.
check "kind tap: ping" ping_to 10.1.0.11
check "kind af-packet: ping" ping_to 10.1.0.12
check "kind af-xdp: ping" ping_to 10.1.0.13
if [ "$(printf '%s\n' 6.6 "$(uname -r)" | sort -V | head -1)" = 6.6 ]; then
  check "each veth pair goes the way that was wanted" no_other_way
else
  not_run "each veth pair goes the way that was wanted" "af-xdp needs Linux 6.6, this is $(uname -r)"
fi
check "kind vhost-user: echo by a queue of its own" guest /run/weir/guests/e.sock 52:54:00:00:00:0e 10.1.0.14
check "kind vhost-user-client: echo by a queue of its own" guest listen:/run/weir/guests/f.sock 52:54:00:00:00:0f 10.1.0.15

before=$(main_pid weir-controller)
kill -9 "$before"
check "traffic goes on without the controller" ping_to 10.1.0.11
check "systemd starts a killed controller again" differs weir-controller "$before"
check "it comes back in sync" in_step 2

systemctl stop weir-host
check "traffic goes on while the host's unit is stopped" ping_to 10.1.0.11
check "the unit starts again" systemctl start weir-host
check "and is in sync" in_step 2

before=$(main_pid weir-host)
kill -9 "$before"
check "traffic goes on without the supervisor" ping_to 10.1.0.11
check "systemd starts a killed supervisor again" differs weir-host "$before"
check "in sync again" in_step 2

before=$(switch_pid)
check "the switch is replaced by a reload" systemctl reload weir-host
replaced() { local now; now=$(switch_pid) && [ "$now" != "$before" ]; }
check "another process is the switch" replaced
for address in 10.1.0.11 10.1.0.12 10.1.0.13; do check "ping to $address after it" ping_to $address; done
