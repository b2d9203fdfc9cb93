//! These make devices in a namespace of their own: they need root and `/dev/net/tun`.

use super::*;
use crate::testing::{VNI, label, network, port_entry};
use std::process::Command;
use weir_model::resource::{AttachmentKind, host_end};
use weir_model::{Entry, Version};

/// A named namespace that goes away with this.
struct Netns(String);

impl Netns {
    /// `None` with a line that says why.
    fn new(test: &str, name: &str) -> Option<Netns> {
        let name = format!("wxagent-{name}-{}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output();
        match made {
            Ok(output) if output.status.success() && Path::new("/dev/net/tun").exists() => Some(Netns(name)),
            Ok(output) => {
                println!("NOT RUN {test}: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                println!("NOT RUN {test}: ip: {error}");
                None
            }
        }
    }

    fn ip(&self, arguments: &str) -> String {
        let output = Command::new("ip").args(["-n", &self.0]).args(arguments.split(' ')).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn key() -> Key {
    Key::Port { vni: VNI, endpoint: label("web") }
}

/// A mirror with one port in a namespace.
fn shared(netns: &str, device: &str) -> Arc<Shared> {
    let shared = Shared::new(label("host-1"));
    let mut port = port_entry(&["10.0.0.5"]);
    port.netns = Some(netns.to_string());
    port.device = device.to_string();
    shared.change_mirror(|mirror| {
        mirror.apply(&Key::Network { vni: VNI }, Version(1), Some(&Entry::Network(network("red"))));
        mirror.apply(&key(), Version(1), Some(&Entry::Port(port)));
    });
    shared.set_synced();
    Arc::new(shared)
}

fn keeper(shared: &Arc<Shared>, state: &Path) -> Keeper {
    Keeper::new(shared.clone(), "/run/netns".into(), state).unwrap()
}

fn forget(shared: &Shared) {
    shared.change_mirror(|mirror| mirror.apply(&key(), Version(2), None));
}

#[tokio::test]
async fn a_device_is_made_right_adopted_and_removed() {
    let Some(netns) = Netns::new("a_device_is_made_right_adopted_and_removed", "life") else { return };
    let state = tempfile::tempdir().unwrap();
    let shared = shared(&netns.0, "eth0");
    keeper(&shared, state.path()).settle().await;
    assert_eq!(shared.problems().clone(), BTreeMap::new());
    let link = netns.ip("-d link show eth0");
    for part in [
        "mtu 1400",
        "02:00:0a:00:00:05",
        "alias weir:7/web",
        "tun type tap",
        "vnet_hdr on",
        "persist on",
        "UP",
        "gso_max_size 61000",
        "qlen 4096",
    ] {
        assert!(link.contains(part), "'{part}' is not in {link}");
    }
    netns.ip("link set eth0 down mtu 1300");
    let mut second = keeper(&shared, state.path());
    second.settle().await;
    let link = netns.ip("link show eth0");
    assert!(
        link.contains("mtu 1400") && link.contains("DOWN"),
        "what the endpoint took down stays down: {link}"
    );
    assert_eq!((shared.metrics.devices_created.get(), shared.metrics.devices_adopted.get()), (1, 1));
    netns.ip("link del eth0");
    second.audit(&BTreeSet::from([Some(netns.0.clone())])).await;
    let told = shared.problems().get(&key()).cloned();
    assert!(told.is_some_and(|told| told.contains("'eth0' was deleted")), "it is told meanwhile");
    second.settle().await;
    assert!(netns.ip("link").contains("eth0"), "a removed device is made again");
    forget(&shared);
    second.settle().await;
    assert!(!netns.ip("link").contains("eth0"));
    assert_eq!(shared.metrics.devices_removed.get(), 1);
}

/// A veth pair: one end with its mark in the endpoint's namespace, the other in the host's. Another kind of device takes its place.
#[tokio::test]
async fn a_pair_is_made_and_goes_when_a_tap_is_wanted() {
    let Some(netns) = Netns::new("a_pair_is_made_and_goes_when_a_tap_is_wanted", "pair") else { return };
    let state = tempfile::tempdir().unwrap();
    let shared = shared(&netns.0, "eth0");
    let become_kind = |kind: AttachmentKind, version: u64| {
        let mut port = port_entry(&["10.0.0.5"]);
        (port.netns, port.device, port.kind) = (Some(netns.0.clone()), "eth0".into(), kind);
        shared.change_mirror(|mirror| mirror.apply(&key(), Version(version), Some(&Entry::Port(port))));
    };
    let end = host_end(Some(&netns.0), "eth0");
    let of_host = || {
        let output = Command::new("ip").args(["link", "show", &end]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    become_kind(AttachmentKind::AfXdp, 2);
    // A crash left one that has no mark yet.
    netns.ip(&format!("link add wn{} type veth peer name left", &end[2..]));
    let mut keeper = keeper(&shared, state.path());
    keeper.settle().await;
    assert_eq!(shared.problems().clone(), BTreeMap::new());
    let link = netns.ip("-d link show eth0");
    for part in ["mtu 1400", "02:00:0a:00:00:05", "alias weir:7/web", "veth", "UP", "qlen 4096"] {
        assert!(link.contains(part), "'{part}' is not in {link}");
    }
    let seen = of_host();
    assert!(seen.contains("mtu 1400") && seen.contains("DOWN"), "the switch brings it up: {seen}");
    assert!(!netns.ip("link").contains("left"), "what a crash left is gone");
    become_kind(AttachmentKind::AfPacket, 3);
    keeper.settle().await;
    assert!(!of_host().is_empty(), "the same pair serves both ways");
    become_kind(AttachmentKind::Tap, 4);
    keeper.settle().await;
    assert!(netns.ip("-d link show eth0").contains("tun type tap"), "{:?}", shared.problems().clone());
    assert_eq!(of_host(), "", "no end is left behind");
}

#[tokio::test]
async fn what_was_removed_while_the_agent_was_down_is_collected() {
    let Some(netns) = Netns::new("what_was_removed_while_the_agent_was_down_is_collected", "left") else {
        return;
    };
    let state = tempfile::tempdir().unwrap();
    let shared = shared(&netns.0, "eth0");
    keeper(&shared, state.path()).settle().await;
    netns.ip("link set eth0 down");
    netns.ip("link set eth0 name moved0");
    keeper(&shared, state.path()).settle().await;
    let reason = shared.problems().get(&key()).cloned().unwrap();
    assert!(reason.contains("renamed to 'moved0'"), "{reason}");
    netns.ip("link add foreign0 type veth peer name foreign1");
    forget(&shared);
    keeper(&shared, state.path()).settle().await;
    let links = netns.ip("link");
    assert!(links.contains("foreign0"), "only marked devices are touched: {links}");
    assert!(!links.contains("moved0") && !links.contains("eth0"), "{links}");
    assert_eq!(shared.metrics.devices_collected.get(), 1);
    let file = std::fs::read_to_string(state.path().join(DEVICES_FILE)).unwrap();
    assert!(!file.contains("eth0"), "{file}");
}

#[tokio::test]
async fn a_port_waits_for_its_namespace_and_comes_back_with_it() {
    let test = "a_port_waits_for_its_namespace_and_comes_back_with_it";
    let Some(probe) = Netns::new(test, "late") else { return };
    let name = probe.0.clone();
    drop(probe);
    let state = tempfile::tempdir().unwrap();
    let shared = shared(&name, "eth0");
    let mut keeper = keeper(&shared, state.path());
    keeper.settle().await;
    let reason = shared.problems().get(&key()).cloned().unwrap();
    assert!(reason.contains("waiting for") && reason.contains(&name), "{reason}");
    assert_eq!(shared.metrics.ports_waiting.get(), 1);
    for round in 0..2 {
        let Some(netns) = Netns::new(test, "late") else { return };
        keeper.forget_lost();
        keeper.settle().await;
        assert!(netns.ip("link show eth0").contains("weir:7/web"), "round {round}");
        assert!(shared.problems().is_empty());
    }
    keeper.forget_lost();
    keeper.settle().await;
    assert_eq!(shared.metrics.ports_waiting.get(), 1, "the namespace is gone again");
}

/// Waits for the kernel to tell something, and does what is to be done; not longer than anything takes.
async fn news(keeper: &mut Keeper) {
    let news = keeper.links.news();
    tokio::time::timeout(Duration::from_secs(60), news.wait()).await.expect("the kernel tells of it");
    keeper.take_news().await;
}

/// The looks from time to time are not run here: what happens is seen because the kernel tells of it.
#[tokio::test]
async fn a_lost_device_is_seen_when_the_kernel_tells_of_it() {
    let test = "a_lost_device_is_seen_when_the_kernel_tells_of_it";
    let (Some(netns), Some(other)) = (Netns::new(test, "told"), Netns::new(test, "other")) else { return };
    let state = tempfile::tempdir().unwrap();
    let shared = shared(&netns.0, "eth0");
    let mut keeper = keeper(&shared, state.path());
    keeper.settle().await;
    assert_eq!(shared.metrics.links_listened.get(), 1);
    let is_there = || netns.ip("link show eth0").contains("weir:7/web");
    let mut wanted = 1;
    for lose in ["link del eth0".to_string(), format!("link set eth0 netns {}", other.0)] {
        netns.ip(&lose);
        wanted += 1;
        while shared.metrics.devices_created.get() < wanted {
            news(&mut keeper).await;
        }
        assert!(is_there() && shared.problems().is_empty(), "{lose}: it is made anew");
    }
    netns.ip("link set eth0 down");
    netns.ip("link set eth0 name moved0");
    while !shared.problems().contains_key(&key()) {
        news(&mut keeper).await;
    }
    let reason = shared.problems().get(&key()).cloned().unwrap();
    assert!(reason.contains("renamed to 'moved0'"), "{reason}");
    netns.ip("link set moved0 name eth0");
    while shared.problems().contains_key(&key()) {
        news(&mut keeper).await;
    }
    assert!(is_there(), "renamed back it is taken again");
}

/// Who listens in a namespace keeps it alive, so it must stop when its name is gone.
#[tokio::test]
async fn a_namespace_that_goes_or_is_made_anew_is_seen_and_not_kept() {
    let test = "a_namespace_that_goes_or_is_made_anew_is_seen_and_not_kept";
    let Some(netns) = Netns::new(test, "again") else { return };
    let name = netns.0.clone();
    let state = tempfile::tempdir().unwrap();
    let shared = shared(&name, "eth0");
    let mut keeper = keeper(&shared, state.path());
    keeper.settle().await;
    assert_eq!((shared.metrics.links_listened.get(), shared.metrics.ports_ready.get()), (1, 1));
    drop(netns);
    while shared.metrics.ports_waiting.get() == 0 {
        news(&mut keeper).await;
    }
    assert_eq!(shared.metrics.links_listened.get(), 0, "nothing of it is held");
    let Some(netns) = Netns::new(test, "again") else { return };
    // A name is there before its namespace is: the tries of each second are what finds it then.
    while !shared.problems().is_empty() {
        keeper.settle().await;
    }
    assert!(netns.ip("link show eth0").contains("weir:7/web"));
    assert_eq!(shared.metrics.links_listened.get(), 1);
}

#[tokio::test]
async fn a_foreign_device_is_left_alone_and_told() {
    let Some(netns) = Netns::new("a_foreign_device_is_left_alone_and_told", "foreign") else { return };
    netns.ip("link add eth0 type veth peer name eth1");
    let state = tempfile::tempdir().unwrap();
    let shared = shared(&netns.0, "eth0");
    keeper(&shared, state.path()).settle().await;
    let reason = shared.problems().get(&key()).cloned().unwrap();
    assert!(reason.contains("is not ours"), "{reason}");
    assert!(netns.ip("link show eth0").contains("eth0@eth1"));
}

/// Two agents, of two domains or two labs, have the same endpoint in the same namespace: only the one that made the device has it.
#[tokio::test]
async fn a_device_of_another_agent_is_told_with_whose_it_is_and_left_alone() {
    let test = "a_device_of_another_agent_is_told_with_whose_it_is_and_left_alone";
    let Some(netns) = Netns::new(test, "two") else { return };
    for kind in [AttachmentKind::Tap, AttachmentKind::AfPacket] {
        let (state, other_state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (shared, other) = (shared(&netns.0, "eth0"), shared(&netns.0, "eth0"));
        for shared in [&shared, &other] {
            let mut port = port_entry(&["10.0.0.5"]);
            (port.netns, port.device, port.kind) = (Some(netns.0.clone()), "eth0".into(), kind);
            shared.change_mirror(|mirror| mirror.apply(&key(), Version(2), Some(&Entry::Port(port))));
        }
        keeper(&shared, state.path()).settle().await;
        let before = netns.ip("-d link show eth0");
        assert!(before.contains("alias weir:7/web"), "{:?}", shared.problems().clone());
        let mut second = keeper(&other, other_state.path());
        for _ in 0..2 {
            second.settle().await;
            let reason = other.problems().get(&key()).cloned().unwrap();
            assert!(reason.contains("'weir:7/web' of another agent, host 'host-1' (signature "), "{reason}");
        }
        assert_eq!(other.metrics.ports_waiting.get(), 1);
        forget(&other);
        second.settle().await;
        // Started anew it looks for what it left.
        keeper(&other, other_state.path()).settle().await;
        let counts = &other.metrics;
        assert_eq!((counts.devices_removed.get(), counts.devices_collected.get()), (0, 0));
        assert_eq!(netns.ip("-d link show eth0"), before, "nothing of it has changed");
        let mut first = keeper(&shared, state.path());
        first.settle().await;
        assert_eq!((shared.metrics.devices_adopted.get(), shared.problems().len()), (1, 0));
        forget(&shared);
        first.settle().await;
        assert!(!netns.ip("link").contains("eth0"), "whose it is removes it");
    }
}

/// The release before did not sign: what it listed is taken and signed, and anything else is not ours.
#[tokio::test]
async fn an_unsigned_device_is_taken_by_whose_list_it_is_in_and_signed() {
    let test = "an_unsigned_device_is_taken_by_whose_list_it_is_in_and_signed";
    let Some(netns) = Netns::new(test, "unsigned") else { return };
    let (state, other_state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (shared, other) = (shared(&netns.0, "eth0"), shared(&netns.0, "eth0"));
    keeper(&shared, state.path()).settle().await;
    // As the release before leaves device and list.
    let signature = std::fs::read_to_string(state.path().join(owner::OWNER_FILE)).unwrap();
    let name = |link: String| {
        let names: Vec<String> = link.split_whitespace().map(str::to_string).collect();
        names.into_iter().find(|word| word.starts_with(&format!("weir.{}", signature.trim())))
    };
    let signed = name(netns.ip("link show eth0")).expect("it is signed");
    netns.ip(&format!("link property del dev eth0 altname {signed}"));
    let list = state.path().join(DEVICES_FILE);
    let mut written: serde_json::Value = serde_json::from_slice(&std::fs::read(&list).unwrap()).unwrap();
    written.as_object_mut().unwrap().remove("signed").expect("who signs says so");
    std::fs::write(&list, written.to_string()).unwrap();

    let mut second = keeper(&other, other_state.path());
    for _ in 0..2 {
        second.settle().await;
        let reason = other.problems().get(&key()).cloned().unwrap();
        assert!(reason.contains("of an agent that did not sign it"), "{reason}");
    }
    forget(&other);
    second.settle().await;
    keeper(&other, other_state.path()).settle().await;
    assert!(netns.ip("link show eth0").contains("weir:7/web"), "it is left alone");

    let mut first = keeper(&shared, state.path());
    first.settle().await;
    assert_eq!((shared.metrics.devices_adopted.get(), shared.problems().len()), (1, 0));
    assert_eq!(name(netns.ip("link show eth0")), Some(signed.clone()), "it is signed now");
    // From now on its signature counts, and the list does not.
    netns.ip(&format!("link property del dev eth0 altname {signed}"));
    first.audit(&BTreeSet::from([Some(netns.0.clone())])).await;
    first.settle().await;
    assert_eq!(shared.metrics.ports_waiting.get(), 1);
}

#[tokio::test]
async fn nothing_happens_before_the_mirror_is_whole() {
    let state = tempfile::tempdir().unwrap();
    let shared = Arc::new(Shared::new(label("host-1")));
    let mut keeper = keeper(&shared, state.path());
    keeper.settle().await;
    assert!(!keeper.started);
    assert!(!state.path().join(DEVICES_FILE).exists());
}

#[test]
fn a_broken_list_of_devices_is_an_error_and_no_guess() {
    let state = tempfile::tempdir().unwrap();
    std::fs::write(state.path().join(DEVICES_FILE), b"{").unwrap();
    let shared = Arc::new(Shared::new(label("host-1")));
    let error = Keeper::new(shared, "/run/netns".into(), state.path()).err().unwrap();
    assert!(error.to_string().contains(DEVICES_FILE), "{error}");
}
