#!/bin/bash
# Runs in the guest: starts the units as docs/operate says, uses them, breaks them, and says what held, a line a check:
#   ROW ok|FAILED|NOT-RUN|PART|WHAT|SECONDS
# The kernel's command line says which parts (weir.parts=ports,monitor), whether the monitor's figures are made (weir.figures), and how many
# seconds a check may take (weir.patience).
set -u
export LC_ALL=C.UTF-8 HOME=/root WEIR_CONTEXT=/var/lib/weir/controller/admin.json
here=/usr/local/lib/weir-proof
failed=0
part=units

patience=$(tr ' ' '\n' < /proc/cmdline | sed -n 's/^weir\.patience=//p')
export patience=${patience:-120}

row() { echo "ROW $1|$part|$2|$3"; }
check() { # what, a command that shall come true: given up after so many seconds and as many tries
  # An emulated machine on a busy one is slow, and may stand still altogether: such time is none in which anything could come true.
  local what=$1 begin=$SECONDS tries=0; shift
  while [ $SECONDS -lt $((begin + patience)) ] || [ $tries -lt "$patience" ]; do
    tries=$((tries + 1))
    if "$@" >/tmp/last 2>&1; then row ok "$what" $((SECONDS - begin)); return; fi
    sleep 0.5
  done
  row FAILED "$what" $((SECONDS - begin)); echo "after $tries tries"; tail -5 /tmp/last; failed=1
}
not_run() { row NOT-RUN "$1: $2" 0; }
show() { systemctl --no-pager --lines=0 status "$1"; journalctl --no-pager -n 30 -u "$1"; }
in_step() { # at least this many switches, as status says it
  [ "$(weir status | grep -c 'in sync')" -ge "$1" ]
}
main_pid() { systemctl show -p MainPID --value "$1"; }
differs() { local now; now=$(main_pid "$1"); [ "$now" != 0 ] && [ "$now" != "$2" ]; }
has_word() { tr ' ' '\n' < /proc/cmdline | grep -qx "$1"; }
parts=$(tr ' ' '\n' < /proc/cmdline | sed -n 's/^weir\.parts=//p' | tr , ' ')
is_wanted() { [ -z "$parts" ] || [[ " $parts " = *" $1 "* ]]; }

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
check "it has joined" in_step 1
join "$(sed -n 's/^name: //p' /etc/weir/gateway.yaml)" gateway
check "weir-gateway starts" systemctl start weir-gateway
check "resources are accepted" weir apply --yes -f "$here/net.yaml"
check "host and gateway are in sync" in_step 2
check "weir-monitor runs" systemctl is-active weir-monitor

# Who pings has an address, whichever of these is wanted.
if is_wanted ports || is_wanted refused; then
  for n in red-a red-b red-c red-d; do
    check "$n gets its address by DHCP" ip netns exec "$n" udhcpc -i eth0 -n -q -t 5 -s /etc/udhcpc/default.script
  done
fi

for file in ports refused monitor files; do
  is_wanted "$file" || continue
  part=$file
  # shellcheck source=/dev/null
  . "$here/$file.sh"
done

if [ -x "$here/extra" ]; then
  part=extra
  mapfile -t arguments < "$here/extra-arguments"
  what="the program of the one who asked"
  if ! "$here/extra" "${arguments[@]}" > /tmp/extra 2>&1; then
    row FAILED "$what" 0; failed=1
  elif reason=$(grep -om1 'NOT RUN .*' /tmp/extra); then
    not_run "$what" "${reason#NOT RUN }"
  else
    row ok "$what" 0
  fi
  tail -40 /tmp/extra
fi

part=units
# What is refused is an error with a reason: no process of ours ends by the filter's signal.
no_signal() { ! journalctl --no-pager -o cat -u 'weir-*' | grep -E 'status=31|signal:? 31|SIGSYS|code=dumped'; }
check "a refused call ended no process" no_signal
check "the gateway was never restarted" [ "$(systemctl show -p NRestarts --value weir-gateway)" = 0 ]
none_failed() { [ -z "$(systemctl --failed --no-legend --plain 'weir-*')" ]; }
check "no unit has failed" none_failed
weir status
systemd-analyze security --no-pager weir-controller weir-host weir-gateway weir-monitor 2>/dev/null | grep '→'

if [ $failed = 0 ]; then echo "proof: all held"; else
  for unit in weir-controller weir-host weir-gateway weir-monitor weir-filewall weir-files; do show "$unit"; done
  echo "proof: not all held"
fi
sync
