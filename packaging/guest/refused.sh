# shellcheck shell=bash
# Sourced by proof.sh: calls that a unit's filter refuses, one by one. Whoever makes one has an error, says why it does without or cannot, and lives.
refuse() { # unit, calls
  mkdir -p "/etc/systemd/system/$1.service.d"
  printf '[Service]\nSystemCallFilter=~%s\n' "$2" > "/etc/systemd/system/$1.service.d/refuse.conf"
  systemctl daemon-reload
}
allow() { rm -f "/etc/systemd/system/$1.service.d/refuse.conf"; systemctl daemon-reload; }
says() { weir status | grep -E "$1"; }
is_up() { [ "$(systemctl is-active weir-host)" = active ] && ! weir status | grep -q 'host-1.*disconnected'; }
new_switch() { # ends the switch: the next one has the unit's new filter
  local before; before=$(cat /run/weir-host/switch.pid)
  kill -9 "$before"
  check "the switch is started again" sh -c "[ \"\$(cat /run/weir-host/switch.pid)\" != $before ]"
}

# Programs in the kernel: of veth pairs.
refuse weir-host bpf
systemctl restart weir-host
check "weir-host starts without bpf" is_up
new_switch
# Ports that cannot be kept apart from the host's own stack carry nothing.
for name in red/c red/d; do check "port $name says why it carries nothing" says "$name.*not permitted"; done
check "TAPs go on" ip netns exec red-a ping -c 2 -W 2 10.1.0.11
# Interrupts of virtual machines.
refuse weir-host 'bpf io_setup io_submit'
systemctl restart weir-host
check "weir-host starts without io_setup" is_up
new_switch
# Its socket is there again some time after the switch. The reason is told as long as the machine is there that waits for an interrupt.
refused_guest() {
  local machine said=1
  timeout "$((patience / 4))" python3 "$here/vhost.py" /run/weir/guests/e.sock 52:54:00:00:00:0e 10.1.0.14 10.1.0.10 &
  machine=$!
  while [ $said = 1 ] && kill -0 "$machine" 2>/dev/null; do
    if says 'red/e.*asynchronous I/O'; then said=0; else sleep 0.5; fi
  done
  kill "$machine" 2>/dev/null
  wait "$machine" 2>/dev/null
  return $said
}
check "a virtual machine's port says why" refused_guest
check "TAPs go on" ip netns exec red-a ping -c 2 -W 2 10.1.0.11
allow weir-host
systemctl restart weir-host
new_switch
check "weir-host is as it is shipped, and in sync" in_step 2
check "af-xdp is back" ip netns exec red-a ping -c 2 -W 2 10.1.0.13
# The monitor without programs in the kernel.
refuse weir-monitor 'bpf perf_event_open'
systemctl restart weir-monitor
check "weir-monitor goes on without bpf" weir monitor top
check "it says what it does without" sh -c 'weir monitor top; journalctl --no-pager -o cat -u weir-monitor | grep -iE "not permitted|without|refused"'
allow weir-monitor
systemctl restart weir-monitor
check "weir-monitor answers as it is shipped" weir monitor top
