//! The units for systemd beside what each kind of port, feature and role asks of the kernel: a call that a unit's filter refuses costs a
//! feature, and must never cost the process.
//!
//! What is asked is a table here; that nothing is missing in it is held by the sources: every raw call and every family of sockets that
//! they name must be in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use weir_model::resource::AttachmentKind;

const HOST: &str = "weir-host.service";
const GATEWAY: &str = "weir-gateway.service";
const CONTROLLER: &str = "weir-controller.service";
const MONITOR: &str = "weir-monitor.service";
const UNITS: [&str; 4] = [HOST, GATEWAY, CONTROLLER, MONITOR];

/// What something asks of the kernel, beside files, threads and memory.
#[derive(Default)]
struct Need {
    what: &'static str,
    units: &'static [&'static str],
    calls: &'static [&'static str],
    families: &'static [&'static str],
    capabilities: &'static [&'static str],
    devices: &'static [&'static str],
    /// Folders it makes sockets in.
    writes: &'static [&'static str],
}

/// Of each kind of port; whoever adds one adds its needs.
fn of_kind(kind: AttachmentKind) -> Need {
    let units: &[&str] = &[HOST];
    match kind {
        AttachmentKind::Tap => Need {
            what: "tap",
            units,
            calls: &["ioctl", "setns"],
            families: &["AF_NETLINK", "AF_INET"],
            capabilities: &["CAP_NET_ADMIN", "CAP_SYS_ADMIN"],
            devices: &["/dev/net/tun"],
            ..Need::default()
        },
        AttachmentKind::AfPacket => Need {
            what: "af-packet",
            units,
            calls: &["bpf", "setns", "setsockopt", "recvmsg", "sendmsg", "sendmmsg"],
            families: &["AF_NETLINK", "AF_PACKET", "AF_INET"],
            capabilities: &["CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_NET_RAW"],
            ..Need::default()
        },
        AttachmentKind::AfXdp => Need {
            what: "af-xdp",
            units,
            calls: &["bpf", "setns", "setsockopt", "mmap", "membarrier"],
            families: &["AF_NETLINK", "AF_XDP", "AF_PACKET", "AF_INET"],
            capabilities: &["CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK"],
            ..Need::default()
        },
        AttachmentKind::VhostUser => Need {
            what: "vhost-user",
            units,
            calls: &["recvmsg", "io_setup", "io_submit", "io_getevents", "io_destroy", "bind", "chmod"],
            families: &["AF_UNIX"],
            writes: &["/run/weir/guests"],
            ..Need::default()
        },
        AttachmentKind::VhostUserClient => Need {
            what: "vhost-user-client",
            units,
            calls: &["recvmsg", "io_setup", "io_submit", "io_getevents", "io_destroy", "connect"],
            families: &["AF_UNIX"],
            ..Need::default()
        },
    }
}

/// All needs: of kinds of ports, of features, of roles.
fn needs() -> Vec<Need> {
    let kinds = [
        AttachmentKind::Tap,
        AttachmentKind::VhostUser,
        AttachmentKind::VhostUserClient,
        AttachmentKind::AfPacket,
        AttachmentKind::AfXdp,
    ];
    let mut all: Vec<Need> = kinds.map(of_kind).into();
    all.extend([
        Need {
            what: "the underlay by sockets",
            units: &[HOST, GATEWAY],
            calls: &["sendmsg", "sendmmsg", "recvmmsg", "setsockopt", "epoll_wait"],
            families: &["AF_INET", "AF_INET6"],
            ..Need::default()
        },
        Need {
            what: "the underlay by AF_XDP",
            units: &[HOST, GATEWAY],
            calls: &["bpf", "membarrier", "setsockopt"],
            families: &["AF_XDP", "AF_NETLINK"],
            capabilities: &["CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK"],
            ..Need::default()
        },
        Need {
            what: "the way outside",
            units: &[GATEWAY],
            calls: &["ioctl"],
            families: &["AF_NETLINK"],
            capabilities: &["CAP_NET_ADMIN"],
            devices: &["/dev/net/tun"],
            ..Need::default()
        },
        Need {
            what: "DHCP and DNS",
            units: &[HOST],
            calls: &["bind", "recvmsg", "sendmsg"],
            families: &["AF_INET", "AF_INET6"],
            capabilities: &["CAP_NET_BIND_SERVICE", "CAP_NET_RAW"],
            ..Need::default()
        },
        Need {
            what: "an engine that goes before others, and has a processor",
            units: &[HOST, GATEWAY],
            calls: &["setpriority", "getpriority", "sched_setaffinity", "sched_getaffinity"],
            capabilities: &["CAP_SYS_NICE"],
            ..Need::default()
        },
        Need {
            what: "a switch that is replaced, and descriptors that outlive it",
            units: &[HOST, GATEWAY],
            calls: &[
                "sendmsg",
                "recvmsg",
                "fcntl",
                "flock",
                "kill",
                "pidfd_open",
                "pidfd_send_signal",
                "memfd_create",
            ],
            families: &["AF_UNIX"],
            ..Need::default()
        },
        Need {
            what: "a supervisor",
            units: &[HOST, GATEWAY],
            calls: &["clone3", "clone", "execve", "wait4", "waitid", "prctl", "kill"],
            families: &["AF_UNIX"],
            ..Need::default()
        },
        Need {
            what: "sessions",
            units: &[HOST, GATEWAY, CONTROLLER],
            calls: &["connect", "accept4", "getrandom", "fsync", "fdatasync", "rename"],
            families: &["AF_INET", "AF_INET6", "AF_UNIX"],
            ..Need::default()
        },
        Need {
            what: "watching and repairing",
            units: &[MONITOR],
            calls: &[
                "bpf",
                "perf_event_open",
                "process_vm_readv",
                "ptrace",
                "sched_setscheduler",
                "mlockall",
                "kill",
                "tgkill",
            ],
            families: &["AF_NETLINK", "AF_UNIX", "AF_INET", "AF_INET6"],
            capabilities: &[
                "CAP_KILL",
                "CAP_SYS_PTRACE",
                "CAP_BPF",
                "CAP_PERFMON",
                "CAP_NET_ADMIN",
                "CAP_SYS_RESOURCE",
            ],
            ..Need::default()
        },
    ]);
    all
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// systemd's sets of calls, by name.
fn sets() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let mut sets = BTreeMap::new();
    let mut name = "";
    for line in include_str!("units/sets.txt").lines().filter(|line| !line.starts_with('#')) {
        if line.starts_with('@') {
            name = line;
            sets.insert(name, BTreeSet::new());
        } else if let Some(set) = sets.get_mut(name) {
            set.extend(line.split_whitespace());
        }
    }
    sets
}

/// A unit's settings: each key's values, in order.
struct Unit(BTreeMap<String, Vec<String>>);

impl Unit {
    fn parse(text: &str) -> Unit {
        let mut settings: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (key, value) in
            text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='))
        {
            settings.entry(key.trim().into()).or_default().push(value.trim().into());
        }
        Unit(settings)
    }

    fn read(name: &str) -> Unit {
        let path = root().join("packaging").join(name);
        Unit::parse(
            &std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
        )
    }

    fn all(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0.get(key).into_iter().flatten().flat_map(|value| value.split_whitespace())
    }

    fn is_set(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// Whether its filter lets a call through: lists add to each other, those behind `~` take away.
    fn allows(&self, call: &str) -> bool {
        let Some(lists) = self.0.get("SystemCallFilter") else { return true };
        let sets = sets();
        let mut allowed = false;
        for list in lists {
            let (takes, list) = list.strip_prefix('~').map_or((false, list.as_str()), |list| (true, list));
            let named = |word: &str| match sets.get(word) {
                Some(set) => set.contains(call),
                None => {
                    assert!(!word.starts_with('@'), "the set {word} is not in units/sets.txt");
                    word == call
                }
            };
            if list.split_whitespace().any(named) {
                allowed = !takes;
            }
        }
        allowed
    }

    fn has(&self, key: &str, word: &str) -> bool {
        !self.is_set(key) || self.all(key).any(|there| there == word)
    }

    /// Whether a folder can be written to, and is made.
    fn writes(&self, folder: &str) -> bool {
        let writable = self.all("ReadWritePaths").any(|path| path.trim_start_matches('-') == folder);
        writable && self.0.get("ExecStartPre").into_iter().flatten().any(|command| command.contains(folder))
    }

    /// What it lacks for something.
    fn lacks(&self, need: &Need) -> Vec<String> {
        let mut lacks = Vec::new();
        let mut look = |what: &str, words: &[&str], has: &dyn Fn(&str) -> bool| {
            lacks.extend(words.iter().filter(|word| !has(word)).map(|word| format!("{what} {word}")));
        };
        look("call", need.calls, &|call| self.allows(call));
        look("family", need.families, &|family| self.has("RestrictAddressFamilies", family));
        look("capability", need.capabilities, &|capability| self.has("CapabilityBoundingSet", capability));
        look("device", need.devices, &|device| self.has("DeviceAllow", device));
        look("folder", need.writes, &|folder| self.writes(folder));
        lacks
    }
}

#[test]
fn every_kind_of_port_every_feature_and_every_role_has_what_it_calls() {
    let mut missing = Vec::new();
    for need in needs() {
        for unit in need.units {
            let lacks = Unit::read(unit).lacks(&need);
            if !lacks.is_empty() {
                missing.push(format!("{unit}, for {}: {}", need.what, lacks.join(", ")));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn a_call_that_a_unit_refuses_is_an_error_and_no_death() {
    for name in UNITS {
        let unit = Unit::read(name);
        let error: Vec<&str> = unit.all("SystemCallErrorNumber").collect();
        assert_eq!(error, ["EPERM"], "{name}: without SystemCallErrorNumber a refused call kills");
    }
}

#[test]
fn the_filter_is_read_as_systemd_reads_it() {
    let unit = Unit::parse(
        "# SystemCallFilter=@known\nSystemCallFilter=@system-service bpf\nSystemCallFilter=~@resources\n",
    );
    for (call, allowed) in [
        ("read", true),
        ("bpf", true),
        ("io_submit", true),
        ("setpriority", false),
        ("reboot", false),
        ("mount", false),
    ] {
        assert_eq!(unit.allows(call), allowed, "{call}");
    }
    let need = of_kind(AttachmentKind::AfXdp);
    let narrow = "SystemCallFilter=@system-service\nRestrictAddressFamilies=AF_INET AF_NETLINK AF_PACKET\n";
    assert_eq!(Unit::parse(narrow).lacks(&need), ["call bpf", "family AF_XDP"]);
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            sources(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" && name != "testing.rs" {
            found.push(path);
        }
    }
}

/// Words that begin so, in the code of a file: not in its comments, nor what is longer on the left.
fn words<'a>(text: &'a str, start: &'a str) -> impl Iterator<Item = &'a str> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    code.flat_map(move |line| {
        line.match_indices(start).filter_map(move |(at, _)| {
            let rest = &line[at..];
            let end = rest.find(|letter| !is_word(letter)).unwrap_or(rest.len());
            (!line[..at].ends_with(is_word) && end > start.len()).then_some(&rest[..end])
        })
    })
}

#[test]
fn the_table_has_every_raw_call_and_every_family_of_the_sources() {
    for (folders, unit) in
        [(&["network/switch/src", "host/agent/src"][..], HOST), (&["host/monitor/src"], MONITOR)]
    {
        let mut files = Vec::new();
        folders.iter().for_each(|folder| sources(&root().join(folder), &mut files));
        assert!(files.len() > 20, "the sources are there");
        let of_unit: Vec<Need> = needs().into_iter().filter(|need| need.units.contains(&unit)).collect();
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            let known = |call: &str| of_unit.iter().any(|need| need.calls.contains(&call));
            for call in words(&text, "SYS_").filter_map(|word| word.strip_prefix("SYS_")) {
                assert!(known(call), "{} calls {call}: say in the table for what", file.display());
            }
            let known = |family: &str| of_unit.iter().any(|need| need.families.contains(&family));
            for family in words(&text, "libc::AF_").filter_map(|word| word.strip_prefix("libc::")) {
                assert!(known(family), "{} uses {family}: say in the table for what", file.display());
            }
        }
    }
}
