//! The switch passes what every actuator must pass, with networks and with ports: all of it but its sockets and the thread of its slow
//! path, whose work is done here.

use super::super::assembly::{Assembly, Running};
use super::super::given::Given;
use super::super::{CHECKPOINT_FILE, check, read_secrets};
use crate::control::clients::{Client, ControlCounters, Request};
use crate::engine::Command;
use crate::engine::sys::Wakeup;
use crate::resolve::TableResolver;
use crate::slow::{Slow, tables_mind};
use crate::tables::SUBNETS_MAX;
use crate::testing::{label, network_entry, port_entry, port_key, subnet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use weir_actuator::Identity;
use weir_actuator::suite::{Driver, HOST_SEED, Tried, Watch};
use weir_base::codec::read_frame;
use weir_model::entry::Vni;
use weir_model::join::{TrustFile, to_hex};
use weir_model::local::{FromSwitch, ToSwitch};
use weir_model::resource::ADDRESSES_MAX;
use weir_model::signed::{SignedAcks, SignedUpdates};
use weir_model::{Ack, Entry, Key, Update, Version};
use weir_trust::batch::{GroupSigner, SingleSigner, sign_batch};
use weir_trust::identity::{KeyPair, sign_acks, verify_acks};
use weir_trust::token::TokenKey;

/// A switch whose slow path works when it is asked to.
struct Machine {
    slow: Option<Slow<TableResolver>>,
    running: Option<Running>,
    client: Arc<Client>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.slow.take());
        self.running.take().into_iter().for_each(Running::give_up);
    }
}

impl Machine {
    /// On a folder, at an address of its own.
    fn open(identity: &Identity, folder: &Path) -> Result<Machine, String> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let mut config = super::config(folder);
        config.name = identity.actuator.clone();
        config.domain = identity.domain.clone();
        let at = u32::from(Ipv4Addr::new(127, 77, 0, 0)) + NEXT.fetch_add(1, Ordering::Relaxed);
        config.underlay = Ipv4Addr::from(at).into();
        config.engine.source_ports = 1;
        config.engine.flows_max = 1024;
        for folder in [&config.run_dir, &config.state_dir] {
            std::fs::create_dir_all(folder).map_err(|error| text(&error))?;
        }
        let trust = TrustFile {
            domain: config.domain.clone(),
            group_key: identity.group.to_hex(),
            epoch: 1,
            dataplane_secret: to_hex(&[2; 16]),
        };
        let trust = serde_json::to_vec(&trust).map_err(|error| text(&error))?;
        std::fs::write(&config.trust_file, trust).map_err(|error| text(&error))?;
        std::fs::write(&config.identity_file, to_hex(&HOST_SEED)).map_err(|error| text(&error))?;
        check(&config).map_err(|error| text(&error))?;
        let secrets = read_secrets(&config).map_err(|error| text(&error))?;
        let mind = tables_mind::make(&config, TokenKey::new(secrets.dataplane));
        let given = Given::fresh(&config, &secrets).map_err(|error| text(&error))?;
        let assembly = Assembly::new(&config, secrets, mind, given).map_err(|error| text(&error))?;
        assembly.slow.tell_engine(Command::Resume).map_err(|error| text(&error))?;
        let (running, slow) = assembly.run_engine(&config).map_err(|error| text(&error))?;
        let wake = Arc::new(Wakeup::new().map_err(|error| text(&error))?);
        let client = Arc::new(Client::new(wake, Arc::new(ControlCounters::default())));
        Ok(Machine { slow: Some(slow), running: Some(running), client })
    }

    fn slow(&mut self) -> &mut Slow<TableResolver> {
        self.slow.as_mut().unwrap()
    }

    fn mind(&mut self) -> &TableResolver {
        self.slow().in_force().1
    }

    /// Says something as a client, and hears all that is answered.
    fn say(&mut self, body: ToSwitch) -> Vec<FromSwitch> {
        let request = Request { client: Arc::clone(&self.client), body, received: Instant::now() };
        self.slow().take_request(request).unwrap();
        let mut answers = Vec::new();
        while let Some(bytes) = self.client.next_frame() {
            answers.push(read_frame(&mut &bytes[..]).unwrap());
        }
        answers
    }
}

impl Tried for Machine {
    fn take(&mut self, frame: &SignedUpdates) -> Option<SignedAcks> {
        // What is forged is acked by itself: both are put together in the order of the frame.
        let answers = self.say(ToSwitch::Updates(frame.clone())).into_iter();
        let of_acks = |answer| match answer {
            FromSwitch::Acks(acks) => Some(acks),
            _ => None,
        };
        let told: Vec<SignedAcks> = answers.filter_map(of_acks).collect();
        let key = KeyPair::from_seed(&HOST_SEED);
        assert!(told.iter().all(|acks| verify_acks(&key.public(), acks).is_ok()));
        let actuator = told.first()?.actuator.clone();
        let mut acks: Vec<Ack> = told.into_iter().flat_map(|acks| acks.acks).collect();
        let mut ordered = Vec::new();
        for proven in &frame.updates {
            let is_its = |ack: &Ack| (&ack.key, ack.version) == (&proven.update.key, proven.update.version);
            ordered.extend(acks.iter().position(is_its).map(|at| acks.remove(at)));
        }
        assert!(acks.is_empty(), "acks of what nobody sent: {acks:?}");
        Some(sign_acks(&key, &actuator, ordered))
    }

    fn state(&mut self) -> Vec<(Key, Version)> {
        let told = self.say(ToSwitch::SendState).into_iter();
        let entries = told.filter_map(|answer| match answer {
            FromSwitch::State { entries, .. } => Some(entries),
            _ => None,
        });
        entries.flatten().collect()
    }

    fn watch_writes(&mut self, watch: Watch) {
        self.slow().in_force().0.watch_writes(watch);
    }

    fn applied(&mut self) -> u64 {
        self.slow().in_force().0.gate().counters.applied
    }

    fn problems(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// The network of all ports here.
const VNI: u32 = 7;

fn is_in_force(machine: &mut Machine, key: &Key) -> Option<Entry> {
    let tables = machine.mind().tables();
    match key {
        Key::Network { vni } => tables.network(vni.0)?.entry.clone().map(Entry::Network),
        Key::Port { vni, endpoint } => {
            tables.port_named(vni.0, endpoint).map(|port| Entry::Port(port.entry.clone()))
        }
        _ => None,
    }
}

/// What no switch takes.
fn strange() -> Vec<(Key, Entry, &'static str)> {
    let plane = Key::Plane { plane: label("echo"), name: "n".into() };
    vec![
        (plane, Entry::Plane(b"{}".to_vec()), "a switch has no plane echo"),
        (Key::Network { vni: Vni(0) }, Entry::Network(network_entry("red", false)), "network identifier 0"),
    ]
}

mod networks {
    use super::*;

    struct Networks;

    impl Driver for Networks {
        type Machine = Machine;

        fn open(&self, identity: Identity, folder: &Path) -> Result<Machine, String> {
            Machine::open(&identity, folder)
        }

        fn journal(&self, folder: &Path) -> PathBuf {
            folder.join("state").join(CHECKPOINT_FILE)
        }

        fn keys(&self) -> Result<[Key; 2], String> {
            Ok([Vni(VNI), Vni(8)].map(|vni| Key::Network { vni }))
        }

        fn entry(&self, number: u32) -> Entry {
            Entry::Network(network_entry(&format!("red-{number}"), number.is_multiple_of(2)))
        }

        fn refused(&self) -> Entry {
            let mut entry = network_entry("red", false);
            entry.mtu = 1;
            Entry::Network(entry)
        }

        fn in_force(&self, machine: &mut Machine, key: &Key) -> Option<Entry> {
            is_in_force(machine, key)
        }

        fn strange(&self) -> Result<Vec<(Key, Entry, &'static str)>, String> {
            Ok(strange())
        }

        fn largest(&self) -> Entry {
            let mut entry = network_entry("red", false);
            let many =
                (0..SUBNETS_MAX).map(|number| subnet(&format!("s{number}"), Some("10.0.0.0/24"), None));
            entry.subnets = many.collect();
            Entry::Network(entry)
        }

        fn misfits(&self) -> Result<Vec<(Key, Entry)>, String> {
            let [key, _] = self.keys()?;
            Ok(vec![(key, Entry::Sought), (Key::Gateways, self.entry(1))])
        }
    }

    weir_actuator::suite!(Networks);
}

mod ports {
    use super::*;

    struct Ports;

    impl Driver for Ports {
        type Machine = Machine;

        fn open(&self, identity: Identity, folder: &Path) -> Result<Machine, String> {
            Machine::open(&identity, folder)
        }

        fn journal(&self, folder: &Path) -> PathBuf {
            folder.join("state").join(CHECKPOINT_FILE)
        }

        fn keys(&self) -> Result<[Key; 2], String> {
            Ok(["a", "b"].map(|name| port_key(VNI, name)))
        }

        fn entry(&self, number: u32) -> Entry {
            Entry::Port(port_entry(1, "weir-no-such", &[&format!("10.0.0.{number}")], &["web"]))
        }

        fn refused(&self) -> Entry {
            Entry::Port(port_entry(1, "", &["10.0.0.1"], &[]))
        }

        fn in_force(&self, machine: &mut Machine, key: &Key) -> Option<Entry> {
            is_in_force(machine, key)
        }

        fn strange(&self) -> Result<Vec<(Key, Entry, &'static str)>, String> {
            Ok(strange())
        }

        fn largest(&self) -> Entry {
            let addresses: Vec<String> =
                (1..=ADDRESSES_MAX).map(|number| format!("10.0.1.{number}")).collect();
            let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
            Entry::Port(port_entry(1, "weir-no-such", &addresses, &[]))
        }

        fn misfits(&self) -> Result<Vec<(Key, Entry)>, String> {
            let [key, _] = self.keys()?;
            Ok(vec![(key, Entry::Sought), (Key::Gateways, self.entry(1))])
        }
    }

    weir_actuator::suite!(Ports);
}

fn put(version: u64, key: Key, entry: Entry) -> SignedUpdates {
    let update = Update { target: label("h1"), ..crate::testing::put(version, key, entry) };
    let signer = SingleSigner(KeyPair::from_seed(&[1; 32]));
    let (header, proven) = sign_batch(&signer, &label("lab"), 1, Version(version), vec![update]).unwrap();
    SignedUpdates { header, updates: proven }
}

/// The checkpoint of a release that took what this one refuses: it is not told as in force, and who sends it again hears why.
#[test]
fn what_the_tables_refuse_after_a_restart_is_not_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let group = SingleSigner(KeyPair::from_seed(&[1; 32])).group_key();
    let identity = || Identity {
        actuator: label("h1"),
        domain: label("lab"),
        group: group.clone(),
        read_key: Box::new(|| Ok(KeyPair::from_seed(&HOST_SEED))),
    };
    let (fits, strange) = (port_key(VNI, "fits"), port_key(VNI, "strange"));
    let good = put(1, fits.clone(), Entry::Port(port_entry(1, "weir-no-such", &["10.0.0.1"], &[])));
    let bad = put(2, strange.clone(), Entry::Port(port_entry(2, "", &["10.0.0.2"], &[])));
    std::fs::create_dir_all(folder.path().join("state")).unwrap();
    let checkpoint = folder.path().join("state").join(CHECKPOINT_FILE);
    let verifier = weir_trust::batch::Verifier::new(label("lab"), group.clone());
    let mut gate = weir_trust::gate::Gate::open(label("h1"), verifier, &checkpoint).unwrap();
    let alone = |gate: &mut weir_trust::gate::Gate, frame: &SignedUpdates| {
        assert_eq!(gate.admit(frame, 0), weir_trust::gate::Verdict::Admit);
        gate.commit(frame, &[0]).unwrap();
        gate.digest()
    };
    let digest_of_good = alone(&mut gate, &good);
    assert_ne!(alone(&mut gate, &bad), digest_of_good);
    drop(gate);

    let mut machine = Machine::open(&identity(), folder.path()).unwrap();
    let told = |machine: &mut Machine| {
        let mut answers = machine.say(ToSwitch::SendState).into_iter();
        let found = answers.find_map(|answer| match answer {
            FromSwitch::State { digest, entries, .. } => Some((digest, entries)),
            _ => None,
        });
        found.unwrap()
    };
    assert_eq!(told(&mut machine), (digest_of_good, vec![(fits.clone(), Version(1))]));
    let page = ToSwitch::Ask { id: 1, question: weir_model::local::Question::Entries { after: None } };
    let shown = machine.say(page).into_iter().find_map(|answer| match answer {
        FromSwitch::Answer { answer: weir_model::local::Answer::Entries { entries, .. }, .. } => {
            Some(entries)
        }
        _ => None,
    });
    assert!(shown.unwrap().iter().all(|(key, ..)| *key == fits));
    // It is sent again, and refused for what is wrong with it; what is in force is repeated.
    assert!(machine.take(&bad).unwrap().acks[0].result.is_err());
    assert_eq!(machine.take(&good).unwrap().acks[0].result, Ok(()));
    assert_eq!(told(&mut machine), (digest_of_good, vec![(fits.clone(), Version(1))]));
    // A later version that fits is in force as ever.
    let mended = put(3, strange.clone(), Entry::Port(port_entry(2, "weir-no-such-2", &["10.0.0.2"], &[])));
    assert_eq!(machine.take(&mended).unwrap().acks[0].result, Ok(()));
    assert_eq!(told(&mut machine).1, [(fits, Version(1)), (strange, Version(3))]);
}

/// A port takes the device of an older one, and cannot be kept: the older one has it again, and nobody was told of the other.
#[test]
fn what_a_port_took_that_cannot_be_kept_is_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let identity = Identity {
        actuator: label("h1"),
        domain: label("lab"),
        group: SingleSigner(KeyPair::from_seed(&[1; 32])).group_key(),
        read_key: Box::new(|| Ok(KeyPair::from_seed(&HOST_SEED))),
    };
    let mut machine = Machine::open(&identity, folder.path()).unwrap();
    let port = |last, address| Entry::Port(port_entry(last, "weir-no-such", &[address], &[]));
    let (old, new) = (port_key(VNI, "old"), port_key(VNI, "new"));
    assert!(machine.take(&put(1, old.clone(), port(1, "10.0.0.1"))).unwrap().acks[0].result.is_ok());
    machine.say(ToSwitch::Subscribe);
    let mut fails = true;
    machine.watch_writes(Box::new(move |_| match std::mem::take(&mut fails) {
        true => Err(std::io::Error::other("no room")),
        false => Ok(()),
    }));
    let frame = put(2, new.clone(), port(2, "10.0.0.2"));
    // No ack, and no word of what is not kept.
    for said in machine.say(ToSwitch::Updates(frame.clone())) {
        assert!(matches!(&said, FromSwitch::Changed { key, .. } if *key == old), "{said:?}");
    }
    assert!(is_in_force(&mut machine, &old).is_some() && is_in_force(&mut machine, &new).is_none());
    assert!(machine.take(&frame).unwrap().acks[0].result.is_ok());
    assert!(is_in_force(&mut machine, &old).is_none() && is_in_force(&mut machine, &new).is_some());
}
