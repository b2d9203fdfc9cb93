//! Planes beside the switch: their processes come and go, the session stays.

use super::*;

fn plane_key(plane: &str, name: &str) -> Key {
    Key::Plane { plane: label(plane), name: name.into() }
}

impl World {
    /// A plane's process at `a` tells what it has, or is gone.
    fn tell(&mut self, plane: &str, entries: Option<Vec<(Key, Version)>>) {
        let session = self.actuators[&label("a")].session;
        let mut out = Vec::new();
        // In two parts, as large ones come.
        let half = entries.as_ref().map(|entries| entries[..entries.len() / 2].to_vec());
        let rest = entries.as_ref().map(|entries| entries[entries.len() / 2..].to_vec());
        if half.as_ref().is_some_and(|half| !half.is_empty()) {
            self.scheduler.plane_state(&label("a"), session, &label(plane), (half, false), &mut out);
        }
        self.scheduler.plane_state(&label("a"), session, &label(plane), (rest, true), &mut out);
        self.carry(out);
        self.pump();
    }

    fn acked(&self, key: &Key) -> Option<Version> {
        self.scheduler.targets[&label("a")].slots[key].acked
    }
}

/// An actuator with entries of a switch and of two planes, all in force.
fn world() -> World {
    let mut world = World::with(Mode::Dependent, &["a"]);
    world.connect_all();
    for (version, key) in
        (1..).zip([key(1, 1), plane_key("echo", "n"), plane_key("echo", "m"), plane_key("other", "n")])
    {
        world.insert(held("a", key, version, 0, false, Vec::new()));
    }
    world.pump();
    world.settle();
    world.assert_converged();
    world.sends.clear();
    world
}

#[test]
fn what_a_plane_had_is_not_in_force_while_it_is_away_and_is_when_it_is_back() {
    let mut world = world();
    world.tell("echo", None);
    assert_eq!(world.acked(&plane_key("echo", "n")), None);
    assert_eq!(world.acked(&plane_key("other", "n")), Some(Version(4)));
    assert_eq!(world.acked(&key(1, 1)), Some(Version(1)));
    // It is sent to whoever takes it, and nothing else is.
    assert_eq!(world.sends.len(), 2, "{:?}", world.sends);
    let inbox = std::mem::take(&mut world.actuators.get_mut(&label("a")).unwrap().inbox);
    assert_eq!(inbox.len(), 2);
    let entries = vec![(plane_key("echo", "m"), Version(3)), (plane_key("echo", "n"), Version(2))];
    world.tell("echo", Some(entries));
    assert_eq!(world.acked(&plane_key("echo", "n")), Some(Version(2)));
    assert_eq!(world.scheduler.counters.sessions_compared, 0, "no session was compared as a whole");
    assert_eq!(world.repairs, []);
}

#[test]
fn a_plane_that_lost_what_it_had_gets_it_again() {
    let mut world = world();
    world.actuators.get_mut(&label("a")).unwrap().in_force.remove(&plane_key("echo", "n"));
    world.tell("echo", Some(vec![(plane_key("echo", "m"), Version(3))]));
    assert_eq!(world.sends, [(label("a"), plane_key("echo", "n"))]);
    world.settle();
    world.assert_converged();
}

#[test]
fn what_nobody_desires_of_a_plane_is_repaired_and_a_plane_speaks_for_itself_only() {
    let mut world = world();
    let entries = vec![
        (plane_key("echo", "m"), Version(3)),
        (plane_key("echo", "n"), Version(2)),
        (plane_key("echo", "stranger"), Version(1)),
        // What it says of others is not heard.
        (plane_key("other", "stranger"), Version(1)),
        (key(1, 1), Version(9)),
    ];
    world.tell("echo", Some(entries));
    assert_eq!(world.repairs, [(label("a"), vec![(plane_key("echo", "stranger"), Version(1))])]);
    assert_eq!(world.acked(&key(1, 1)), Some(Version(1)));
}

#[test]
fn a_withdrawal_waits_for_a_plane_that_is_away() {
    let mut world = world();
    world.insert(held("a", plane_key("echo", "n"), 5, 0, true, Vec::new()));
    world.pump();
    world.settle();
    assert_eq!(world.acked(&plane_key("echo", "n")), Some(Version(5)));
    // While it is away nobody knows what it will come back with.
    world.tell("echo", None);
    assert_eq!(world.acked(&plane_key("echo", "n")), None);
    let back = vec![(plane_key("echo", "m"), Version(3)), (plane_key("echo", "n"), Version(5))];
    world.tell("echo", Some(back.clone()));
    assert_eq!(world.acked(&plane_key("echo", "n")), Some(Version(5)));
    // Nor where a session begins without it.
    world.disconnect("a");
    let actuator = world.actuators.get_mut(&label("a")).unwrap();
    actuator.in_force.retain(|key, _| !matches!(key, Key::Plane { plane, .. } if plane.as_str() == "echo"));
    world.connect("a");
    assert_eq!(world.acked(&plane_key("echo", "n")), None);
    let actuator = world.actuators.get_mut(&label("a")).unwrap();
    actuator.inbox.clear();
    actuator.in_force.extend(back.iter().cloned());
    world.tell("echo", Some(back));
    world.settle();
    world.assert_converged();
}

#[test]
fn a_refusal_of_a_plane_that_was_away_does_not_keep_it_waiting() {
    let mut world = world();
    world.tell("echo", None);
    world.actuators.get_mut(&label("a")).unwrap().inbox.clear();
    let nobody = Refusal::Failed("no process".into());
    let refused = [("n", 2), ("m", 3)].map(|(name, version)| Ack {
        key: plane_key("echo", name),
        version: Version(version),
        result: Err(nobody.clone()),
    });
    let session = world.actuators[&label("a")].session;
    let mut out = Vec::new();
    world.scheduler.acks(&label("a"), session, &refused, &mut out);
    world.carry(out);
    world.pump();
    // The places in the window are free for others.
    assert!(world.scheduler.targets[&label("a")].in_flight.is_empty());
    world.sends.clear();
    world.actuators.get_mut(&label("a")).unwrap().in_force.remove(&plane_key("echo", "n"));
    world.tell("echo", Some(vec![(plane_key("echo", "m"), Version(3))]));
    assert_eq!(world.sends, [(label("a"), plane_key("echo", "n"))], "at once, and not at the next try");
    world.settle();
    world.assert_converged();
}
