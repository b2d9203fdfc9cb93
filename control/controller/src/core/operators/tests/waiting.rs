//! Requests that wait for the word of several operators: what counts, what does not, and what is done in the end.

use super::*;
use crate::core::approvals::{
    APPROVALS_TABLE, WAITING_BYTES_MAX, WAITING_MAX, WAITING_OF_MAX, WAITING_TABLE, all_waiting,
    needs as needs_of, waiting,
};
use weir_model::approval::{Approval, Need, Needs, RequestKind};
use weir_model::event::{Mutation, Wanted};
use weir_model::resource::{Kind, ResourceId};
use weir_trust::said::digest;

fn needs(kinds: &[(RequestKind, u8, OperatorRole)]) -> Needs {
    let need = |(kind, approvals, role): &(RequestKind, u8, OperatorRole)| {
        (*kind, Need { approvals: *approvals, role: *role })
    };
    Needs { kinds: kinds.iter().map(need).collect(), wait_s: 3_600 }
}

fn needed(needs: Needs) -> EventBody {
    EventBody::Approval(Box::new(Approval::Needed(needs)))
}

fn given(of: [u8; 32]) -> EventBody {
    EventBody::Approval(Box::new(Approval::Given(of)))
}

fn refusal(of: [u8; 32]) -> EventBody {
    EventBody::Approval(Box::new(Approval::Refused(of)))
}

/// With the admins anna and ada, and the operators olga and otto.
fn four() -> World {
    let mut world = World::with_operators();
    world.anna(change("ada", OperatorChange::Added(facts(OperatorRole::Admin, &[14])))).unwrap();
    world.anna(change("otto", OperatorChange::Added(facts(OperatorRole::Operator, &[15])))).unwrap();
    world
}

impl World {
    fn need(&mut self, kinds: &[(RequestKind, u8, OperatorRole)]) {
        self.anna(needed(needs(kinds))).unwrap();
    }

    /// Asks, and gives the digest of what waits then.
    fn waits(&mut self, author: &str, number: u8, body: EventBody) -> [u8; 32] {
        let said = self.request(author, number, body);
        let digest = digest(&label("d"), &said);
        told(self.hand_on(said)).unwrap();
        assert!(waiting(self.core.store(), &digest).is_some());
        digest
    }

    fn waiting(&self) -> usize {
        let store = self.core.store();
        let known = store.range(APPROVALS_TABLE, b"").filter(|(key, _)| key.len() == 32).count();
        assert_eq!(store.range(WAITING_TABLE, b"").count(), known, "what is gone is gone whole");
        all_waiting(store, self.now_ms).count()
    }

    /// Who has approved a request that waits.
    fn approved_by(&self, of: &[u8; 32]) -> Vec<SourceId> {
        waiting(self.core.store(), of).unwrap().0.approved_by
    }

    /// Who asked for what was done last.
    fn last(&self) -> Option<SourceId> {
        let cell = self.core.store().get("last", b"")?;
        decode::<(SourceId, u64)>(&cell.value).ok().map(|(author, _)| author)
    }
}

#[test]
fn a_request_is_done_when_the_last_that_it_needs_has_said_so_and_not_before() {
    let mut world = four();
    world.anna(change("alma", OperatorChange::Added(facts(OperatorRole::Admin, &[16])))).unwrap();
    world.need(&[(RequestKind::Apply, 3, OperatorRole::Operator)]);
    let before = world.last();
    let of = world.waits("olga", 12, intent());
    assert_eq!((world.waiting(), world.last()), (1, before.clone()), "nothing is done");
    world.check();
    world.asks("otto", 15, given(of)).unwrap();
    assert_eq!(world.last(), before);
    // What nobody has to approve goes on.
    world
        .anna(token(TokenChange::MadeWithKey {
            role: Role::Host,
            until_s: 1,
            underlay: None,
            key: key(20).public(),
        }))
        .unwrap();
    let version = world.asks("ada", 14, given(of)).unwrap();
    assert_eq!(
        (world.waiting(), world.last()),
        (0, Some(super::of("olga"))),
        "apps decide on what its author said"
    );
    assert_eq!(world.core.store().get("last", b"").unwrap().version, version);
    wrong(world.anna(given(of)), "no such request waits");
    world.check();
}

#[test]
fn a_word_counts_once_by_who_may_say_it_and_for_one_request_alone() {
    let mut world = four();
    world.need(&[(RequestKind::Apply, 2, OperatorRole::Admin)]);
    let of = world.waits("olga", 12, intent());
    // The author is no admin: two of them are wanted besides.
    wrong(world.asks("otto", 15, given(of)), "an admin is wanted");
    wrong(world.asks("olga", 13, given(of)), "an admin is wanted");
    world.anna(given(of)).unwrap();
    wrong(world.anna(given(of)), "counts once");
    let mut other = of;
    other[0] ^= 1;
    wrong(world.asks("ada", 14, given(other)), "no such request waits");
    // By a controller's own word, and in another's name.
    wrong(world.bare(given(of)), "Unsigned");
    wrong(world.asks("ada", 66, given(of)), "Forged");
    assert_eq!((world.waiting(), world.last()), (1, Some(super::of("anna"))), "who said what is needed");
    // The very same once more is no second word, nor is it the word for another request.
    let word = world.request("ada", 14, given(of));
    let second = world.waits("olga", 12, intent());
    let done = told(world.hand_on(word.clone())).unwrap();
    assert!(matches!(world.hand_on(word), Outcome::Duplicate(version) if version == done));
    assert_eq!(world.last(), Some(super::of("olga")));
    assert_eq!(
        all_waiting(world.core.store(), world.now_ms).map(|(digest, _)| digest).collect::<Vec<_>>(),
        [second]
    );
    world.check();
}

#[test]
fn what_is_over_refused_or_rejected_in_the_end_is_gone() {
    let mut world = four();
    world.need(&[(RequestKind::Apply, 2, OperatorRole::Operator)]);
    let of = world.waits("olga", 12, intent());
    world.now_ms += 3_600_001;
    wrong(world.asks("otto", 15, given(of)), "no such request waits");
    assert_eq!(world.waiting(), 0);

    let of = world.waits("olga", 12, intent());
    assert_eq!(
        world.core.store().range(APPROVALS_TABLE, b"").count(),
        2,
        "what is over leaves its place: the needs, and this"
    );
    world.asks("olga", 13, refusal(of)).unwrap();
    wrong(world.asks("otto", 15, given(of)), "no such request waits");
    let of = world.waits("olga", 12, intent());
    world.asks("otto", 15, refusal(of)).unwrap();
    assert_eq!(world.waiting(), 0);

    // It is approved, and cannot be done as things are: it is not tried again.
    let of = world.waits("olga", 12, bad_intent());
    wrong(world.asks("otto", 15, given(of)), "replace");
    assert_eq!(world.waiting(), 0);
    wrong(world.anna(given(of)), "no such request waits");
    assert_eq!(world.last(), Some(super::of("anna")), "who said what is needed");
    world.check();
}

#[test]
fn fewer_than_the_most_that_is_needed_change_neither_the_needs_nor_the_operators() {
    let mut world = World::with_operators();
    let two = needs(&[(RequestKind::Revoke, 2, OperatorRole::Admin)]);
    wrong(world.anna(needed(two.clone())), "there would be 1");
    world.anna(change("ada", OperatorChange::Added(facts(OperatorRole::Admin, &[14])))).unwrap();
    wrong(world.asks("olga", 12, needed(two.clone())), "BeyondRole");
    world.anna(needed(two.clone())).unwrap();
    assert_eq!(needs_of(world.core.store()), two);
    // One admin alone lowers nothing and makes nobody.
    let lower = world.waits("anna", 11, needed(Needs::default()));
    let eve =
        world.waits("anna", 11, change("eve", OperatorChange::Added(facts(OperatorRole::Admin, &[66]))));
    for of in [lower, eve] {
        wrong(world.anna(given(of)), "counts once");
        wrong(world.asks("olga", 12, given(of)), "an admin is wanted");
    }
    assert_eq!((world.core.operators().rows().count(), needs_of(world.core.store())), (3, two.clone()));
    // Two of them do, but never below what is needed.
    world.asks("ada", 14, given(eve)).unwrap();
    assert!(world.core.operators().row(&of("eve")).is_some());
    for name in ["eve", "ada"] {
        let gone = world.waits("anna", 11, change(name, OperatorChange::Removed));
        match name {
            "eve" => drop(world.asks("ada", 14, given(gone)).unwrap()),
            _ => wrong(world.asks("ada", 14, given(gone)), "there would be 1"),
        }
    }
    world.asks("ada", 14, given(lower)).unwrap();
    assert_eq!((needs_of(world.core.store()), world.waiting()), (Needs::default(), 0));
    world.check();
}

#[test]
fn the_word_of_who_changed_or_is_gone_counts_no_longer() {
    let mut world = four();
    world.need(&[(RequestKind::Forget, 2, OperatorRole::Admin)]);
    world.need_more();
    // An operator's word that counts, of a request that an operator may ask for: forgetting is the admins'.
    let three = needs(&[(RequestKind::Forget, 3, OperatorRole::Admin)]);
    let three = world.waits("anna", 11, needed(three));
    world.asks("ada", 14, given(three)).unwrap();
    let of = world.waits("anna", 11, EventBody::Removed { actuator: label("h1") });
    world.asks("alma", 16, given(of)).unwrap();
    let own = world.waits("ada", 14, EventBody::Removed { actuator: label("h2") });
    let by_alma = world.waits("alma", 16, EventBody::Removed { actuator: label("h3") });
    // Alma gets another key, by three admins.
    let changed = change("alma", OperatorChange::Changed(facts(OperatorRole::Admin, &[17])));
    let changed = world.waits("anna", 11, changed);
    world.asks("ada", 14, given(changed)).unwrap();
    assert_eq!(world.approved_by(&of), [super::of("alma")]);
    world.asks("alma", 16, given(changed)).unwrap();
    assert!(waiting(world.core.store(), &by_alma).is_none(), "what who changed has asked for is gone");
    assert!(waiting(world.core.store(), &own).is_some());
    assert!(world.approved_by(&of).is_empty());
    wrong(world.asks("alma", 16, given(of)), "Forged");
    world.asks("ada", 14, given(of)).unwrap();
    assert!(waiting(world.core.store(), &of).is_some(), "two of three");
    world.asks("alma", 17, given(of)).unwrap();
    assert!(waiting(world.core.store(), &of).is_none());
    world.check();
}

impl World {
    /// One admin more, by two of them.
    fn need_more(&mut self) {
        let alma = change("alma", OperatorChange::Added(facts(OperatorRole::Admin, &[16])));
        let alma = self.waits("anna", 11, alma);
        self.asks("ada", 14, given(alma)).unwrap();
    }
}

#[test]
fn few_wait_and_none_for_ever() {
    let mut world = four();
    world.need(&[(RequestKind::Apply, 2, OperatorRole::Operator)]);
    for (author, number) in [("olga", 12), ("otto", 15), ("anna", 11), ("ada", 14)] {
        for _ in 0..WAITING_OF_MAX {
            world.waits(author, number, intent());
        }
        wrong(world.asks(author, number, intent()), "wait for approval");
    }
    assert_eq!((world.waiting(), WAITING_OF_MAX * 4), (WAITING_MAX, WAITING_MAX));
    world.now_ms += 3_600_001;
    world.waits("olga", 12, intent());
    assert_eq!(world.core.store().range(APPROVALS_TABLE, b"").count(), 2);
    world.check();
}

/// With a document of this length.
fn long_intent(bytes: usize) -> EventBody {
    let id = ResourceId { kind: Kind::Network, network: None, name: label("red") };
    let mutation = Mutation { id, expected: None, wanted: Wanted::Document("x".repeat(bytes)) };
    EventBody::Intent(Transaction { mutations: vec![mutation], replace_all: false })
}

#[test]
fn what_is_longer_than_a_value_of_the_store_does_not_wait_and_what_waits_can_be_approved() {
    let mut world = four();
    let long = "a".repeat(63);
    for number in 20..26 {
        let name = format!("o{number}{}", &long[3..]);
        world.anna(change(&name, OperatorChange::Added(facts(OperatorRole::Admin, &[number])))).unwrap();
    }
    world.need(&[(RequestKind::Apply, 8, OperatorRole::Operator)]);
    wrong(world.asks("olga", 12, long_intent(WAITING_BYTES_MAX)), "bytes of a request that waits");
    assert_eq!(world.waiting(), 0);
    let of = world.waits("olga", 12, long_intent(WAITING_BYTES_MAX - 300));
    for number in 20..26 {
        world.asks(&format!("o{number}{}", &long[3..]), number, given(of)).unwrap();
        world.check();
    }
    assert_eq!(world.last(), Some(super::of("anna")));
    world.asks("otto", 15, given(of)).unwrap();
    assert_eq!((world.waiting(), world.last()), (0, Some(super::of("olga"))));
}
