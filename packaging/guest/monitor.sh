# shellcheck shell=bash
# Sourced by proof.sh: the monitor's unit, on a host that has nothing but cgroups of version 2, against loads that others wrote; and beside
# others that kill memory hogs.
cage=/sys/fs/cgroup/cage

events() { # a pattern that one line of the newest events matches
  weir monitor events -o json | tr -d '\n' | sed 's/{ *"event"/\n&/g; s/{ *"number"/\n&/g' > /tmp/events
  grep -qE "$1" /tmp/events || { tail -n 3 /tmp/events; false; }
}
# $! is the process itself: a job's number would be another's once it has ended.
caged() { sh -c 'echo $$ > /sys/fs/cgroup/cage/cgroup.procs; exec "$@"' caged "$@" >/dev/null 2>&1 & }
# Once: on a slow machine it takes longer to come up than one would wait before trying again. The old one answers no more.
restart_monitor() { systemctl stop weir-monitor; systemctl start weir-monitor; }
frozen() { grep -q "frozen $1" $cage/cgroup.events; }
empty() { grep -q 'populated 0' $cage/cgroup.events; }

mkdir -p $cage /etc/weir/monitor
for controller in memory pids; do echo "+$controller" > /sys/fs/cgroup/cgroup.subtree_control; done
echo 200 > $cage/pids.max
echo 200M > $cage/memory.max
cat > /etc/weir/monitor/cage.yaml <<'YAML'
kind: fork-bomb
name: cage-forks
cgroup: cage
dry-run: false
when: { forks: 100, window-ms: 10000 }
---
kind: memory-hog
name: cage-memory
cgroup: cage
dry-run: false
cooldown-ms: 100
when: { used-percent: 60 }
YAML
# It came up with the host's unit, before there were policies.
check "weir-monitor starts with policies" systemctl restart weir-monitor
check "it answers" weir monitor top
check "it hears the kernel by programs in it" sh -c "weir monitor top | grep -q 'kernel by bpf'"
pure() { [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; }
check "a pure host of cgroups version 2" pure
# Loads end when they were seen, not by a clock of their own: the machine may stand still meanwhile.
caged sleep 1000
innocent=$!
caged stress-ng --quiet --fork 2 --timeout 0 --temp-path /tmp
load=$!
check "stress-ng's forks are seen and ended" events '"measure": *"forks".*"outcome": *"acted"'
kill "$load" 2>/dev/null
caged stress-ng --quiet --bigheap 1 --timeout 0 --temp-path /tmp
load=$!
check "stress-ng's heap is seen and ended" events '"measure": *"memory-used-bytes".*"outcome": *"acted"'
kill "$load" 2>/dev/null
caged stress-ng --quiet --vm 1 --vm-bytes 180M --vm-keep --timeout 0 --temp-path /tmp
load=$!
check "stress-ng's memory workers are seen and ended" events '"policy": *"cage-memory"'
kill "$load" 2>/dev/null
check "the innocent process lives" kill -0 "$innocent"
check "the packet core of the switch is seen to go on" sh -c "weir monitor top | grep -q 'switch-host-1.*slots'"
check "the controllers are told" sh -c "weir status | grep -q 'host-1: monitor: [1-9]'"
check "they order a freeze" weir monitor repair host-1 freeze cage
check "it is frozen" frozen 1
check "they withdraw it" weir monitor withdraw host-1 cage
check "it is thawed" frozen 0
check "they order it killed" weir monitor repair host-1 kill cage
check "it is empty" empty
before=$(main_pid weir-monitor)
kill -9 "$before"
check "systemd starts a killed monitor again" differs weir-monitor "$before"
check "it answers again" weir monitor top
check "its log is whole" weir monitor audit

# A unit that crashes is started again, by systemctl out of the confined monitor.
cat > /etc/systemd/system/crashing.service <<'UNIT'
[Service]
ExecStart=/bin/sleep 100000
UNIT
cat > /etc/weir/monitor/service.yaml <<'YAML'
kind: service
name: crashing
unit: crashing.service
dry-run: false
restart: { command: [/usr/bin/systemctl, restart, crashing.service], start-ms: 60000 }
YAML
systemctl daemon-reload
systemctl start crashing
restart_monitor
check "it answers with a policy for a unit" weir monitor top
is_main() { weir monitor top -o json | tr -d ' \n' | grep -q "\"main\":$(main_pid crashing)[,}]"; }
check "the unit's main process is followed" is_main
before=$(main_pid crashing)
kill -SEGV "$before"
check "its crash is told" events '"event": *"crashed".*"signal": *11'
check "it is started again" differs crashing "$before"
check "that is told" events '"event": *"restarted"'
check "the new main process is followed" is_main
systemctl stop crashing
rm /etc/weir/monitor/service.yaml
restart_monitor
check "it answers without that policy" weir monitor top

# A fork bomb that nothing bounds: of the whole machine, in no cgroup that a policy names.
cat > /etc/weir/monitor/host.yaml <<'YAML'
kind: fork-bomb
name: host-forks
dry-run: false
when: { living: 200, window-ms: 2000 }
YAML
restart_monitor
check "it answers with a policy for the whole machine" weir monitor top
host=$(main_pid weir-host)
processes=$(echo /proc/[0-9]* | wc -w)
systemd-run --quiet --unit=bomb -p TasksMax=infinity -p LimitNPROC=infinity bash -c ':() { : | : & }; :; sleep 1000'
check "a fork bomb of the whole machine is ended" events '"policy": *"host-forks".*"outcome": *"acted"'
gone() { [ "$(echo /proc/[0-9]* | wc -w)" -lt $((processes + 50)) ]; }
check "the machine has few processes again" gone
check "those that were there live" [ "$(main_pid weir-host)" = "$host" ]
systemctl stop bomb 2>/dev/null
rm /etc/weir/monitor/host.yaml

# Beside others: only when figures are asked for, as it takes long.
has_word weir.figures || return 0

# Who ends a hog of the whole machine how soon, from the moment that a tenth of its memory is left. An emulated machine: only relations count.
# Each in its best mode: earlyoom looks up to ten times a second and does not wait for swap to fill; systemd-oomd has swap, without which
# the kernel's own killer comes before there is any pressure, and waits for a second of it, not thirty.
rounds=3
total_kb=$(awk '/MemTotal/ { print $2 }' /proc/meminfo)
swap_kb=$((total_kb / 2))
dd if=/dev/zero of=/swap bs=1M count=$((swap_kb / 1024)) status=none
chmod 600 /swap
mkswap -q /swap
check "there is swap" swapon /swap
available_kb() { local name rest; while read -r name kb rest; do [ "$name" = MemAvailable: ] && return; done < /proc/meminfo; }
exec {never}<> <(:) # what never says anything: a wait that needs no program
hog() { # who
  local line=$((total_kb / 10)) passed='' ended='' end=$((SECONDS + 90)) kb=0 now
  systemd-run --quiet --scope -p ManagedOOMMemoryPressure=kill -p ManagedOOMMemoryPressureLimit=5% \
    stress-ng --quiet --oomable --vm 1 --vm-bytes "$((total_kb + swap_kb / 2))k" --vm-keep --timeout 100 --temp-path /tmp >/dev/null 2>&1 &
  local load=$!
  # Who looks must not be held up, nor hold anybody up.
  chrt -f -p 60 $$
  while [ $SECONDS -lt $end ]; do
    available_kb
    now=$EPOCHREALTIME
    if [ -z "$passed" ]; then
      [ "$kb" -lt "$line" ] && passed=$now
    elif [ "$kb" -gt $((line * 3)) ]; then
      ended=$(((${now/./} - ${passed/./}) / 1000))ms
      break
    fi
    read -rt 0.005 -u "$never"
  done
  chrt -o -p 0 $$
  [ -n "$passed" ] || ended=line_not_reached
  echo "RESULT guest hog_ended $1=${ended:-not_in_90s}"
  kill "$load" 2>/dev/null
  wait "$load" 2>/dev/null
}
cat > /etc/weir/monitor/host.yaml <<YAML
kind: memory-hog
name: host-memory
whitelist: [systemd, systemd-journal, weir]
dry-run: false
when: { available-bytes: $((total_kb * 1024 / 10)) }
YAML
rm -f /etc/systemd/system/systemd-oomd.service
mkdir -p /etc/systemd/oomd.conf.d
printf '[OOM]\nDefaultMemoryPressureDurationSec=1s\n' > /etc/systemd/oomd.conf.d/best.conf
systemctl daemon-reload
for ((round = 0; round < rounds; round++)); do
  restart_monitor
  check "it answers with another policy" weir monitor top
  hog weir
  systemctl stop weir-monitor
  earlyoom -m 10 -s 100 -r 0 >/dev/null 2>&1 &
  hog earlyoom
  kill %earlyoom 2>/dev/null
  check "systemd-oomd runs" sh -c 'systemctl start systemd-oomd && sleep 1 && systemctl is-active systemd-oomd'
  hog systemd-oomd
  systemctl stop systemd-oomd 2>/dev/null
done
# What it did not end itself the kernel did.
echo "systemd-oomd: $(journalctl --no-pager -o cat -u systemd-oomd | grep -ci killed) kills of $rounds"
rm /etc/weir/monitor/host.yaml
check "weir-monitor starts again" systemctl start weir-monitor
