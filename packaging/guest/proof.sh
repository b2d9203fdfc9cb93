#!/bin/bash
# Runs in the guest: starts the units as docs/operate says, uses them, breaks them, and says what held.
set -u
export LC_ALL=C.UTF-8 HOME=/root WEIR_CONTEXT=/var/lib/weir/controller/admin.json
failed=0

check() { # what, a command that shall come true within a minute
  local what=$1 end=$((SECONDS + 60)); shift
  while [ $SECONDS -lt $end ]; do
    if "$@" >/tmp/last 2>&1; then echo "ok $what"; return; fi
    sleep 0.5
  done
  echo "FAILED $what"; tail -5 /tmp/last; failed=1
}
show() { systemctl --no-pager --lines=0 status "$1"; journalctl --no-pager -n 30 -u "$1"; }
in_step() { # at least this many switches, as status says it
  [ "$(weir status | grep -c 'in sync')" -ge "$1" ]
}
no_other_way() { ! journalctl --no-pager -u weir-host | grep -q 'another way than was wanted'; }
# A virtual machine monitor that says one thing: GET_FEATURES, to which eight bytes behind a header are the answer.
monitor_comes() {
  perl -MSocket -e 'socket(my $s, PF_UNIX, SOCK_STREAM, 0) && connect($s, pack_sockaddr_un($ARGV[0])) or die "$!";
    syswrite($s, pack("VVV", 1, 1, 0)); alarm 5; sysread($s, my $answer, 20) == 20 or die "no answer"' /run/weir/guests/e.sock
}
main_pid() { systemctl show -p MainPID --value "$1"; }
differs() { local now; now=$(main_pid "$1"); [ "$now" != 0 ] && [ "$now" != "$2" ]; }

# Underlay addresses of the example settings, all on this one machine.
ip link set lo up
modprobe dummy 2>/dev/null
ip link add underlay type dummy
for address in 192.0.2.10 192.0.2.11 192.0.2.21; do ip address add "$address/24" dev underlay; done
ip link set underlay up mtu 9000
echo 1 > /proc/sys/net/ipv4/ip_forward
for n in red-a red-b red-c red-d; do ip netns add "$n"; ip -n "$n" link set lo up; done

check "weir-controller starts" systemctl start weir-controller
check "it answers" weir status
sed -i 's/127.0.0.1:9471/127.0.0.1:9472/' /etc/weir/gateway.yaml
# Here both are on the controller's machine, and speak from its address.
join() {
  install -m 600 /dev/null /etc/weir/join.env
  printf 'WEIR_JOIN_TOKEN=%s\n' "$(weir token --name "$1" --role "$2" --underlay 192.0.2.0/24)" > /etc/weir/join.env
}
join "$(sed -n 's/^name: //p' /etc/weir/host.yaml)" host
check "weir-host starts" systemctl start weir-host
check "weir-host has joined" in_step 1
join "$(sed -n 's/^name: //p' /etc/weir/gateway.yaml)" gateway
check "weir-gateway starts" systemctl start weir-gateway
check "resources are accepted" weir apply --yes -f /root/net.yaml
check "host and gateway are in sync" in_step 2
units() {
  for n in red-a red-b red-c red-d; do
    check "$n gets its address by DHCP" ip netns exec "$n" udhcpc -i eth0 -n -q -t 5 -s /etc/udhcpc/default.script
  done
  check "ping between endpoints" ip netns exec red-a ping -c 2 -W 2 10.1.0.11
  # Each kind of port asks other calls of the kernel.
  check "ping to an endpoint of kind af-packet" ip netns exec red-a ping -c 2 -W 2 10.1.0.12
  check "ping to an endpoint of kind af-xdp" ip netns exec red-a ping -c 2 -W 2 10.1.0.13
  check "each has the way that was wanted" no_other_way
  check "the socket of kind vhost-user is there" test -S /run/weir/guests/e.sock
  check "its switch takes a monitor, and goes on" monitor_comes

  before=$(main_pid weir-controller)
  kill -9 "$before"
  check "traffic goes on without the controller" ip netns exec red-a ping -c 1 -W 2 10.1.0.11
  check "systemd starts a killed controller again" differs weir-controller "$before"
  check "it comes back in sync" in_step 2

  systemctl stop weir-host
  check "traffic goes on while the host's unit is stopped" ip netns exec red-a ping -c 2 -W 2 10.1.0.11
  check "the unit starts again" systemctl start weir-host
  check "and is in sync" in_step 2

  before=$(main_pid weir-host)
  kill -9 "$before"
  check "traffic goes on without the supervisor" ip netns exec red-a ping -c 1 -W 2 10.1.0.11
  check "systemd starts a killed supervisor again" differs weir-host "$before"
  check "in sync again" in_step 2
}
# The units can be left out, to prove the monitor alone.
grep -qw weir.proof=monitor /proc/cmdline || units

# shellcheck source=packaging/guest/monitor.sh
. /usr/local/sbin/weir-proof-monitor

check "no call was refused by a unit's filter" sh -c '! journalctl --no-pager -u "weir-*" | grep -E "status=31|signal:? 31|SIGSYS"'
check "the gateway was never restarted" [ "$(systemctl show -p NRestarts --value weir-gateway)" = 0 ]
none_failed() { [ -z "$(systemctl --failed --no-legend --plain 'weir-*')" ]; }
check "no unit has failed" none_failed
weir status
systemd-analyze security --no-pager weir-controller weir-host weir-gateway weir-monitor 2>/dev/null | tail -5

if [ $failed = 0 ]; then echo "proof: all held"; else
  for unit in weir-controller weir-host weir-gateway weir-monitor; do show "$unit"; done
  echo "proof: not all held"
fi
sync
