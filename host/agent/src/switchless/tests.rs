use super::*;
use weir_model::entry::ControllersEntry;
use weir_model::event::Role;
use weir_model::join::{IDENTITY_FILE, TRUST_FILE, TrustFile, to_hex};
use weir_model::session::StateDigest;
use weir_model::{Change, Entry, Version};
use weir_trust::batch::{GroupSigner, SingleSigner, sign_batch};
use weir_trust::identity::{KeyPair, verify_acks};

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn signer() -> SingleSigner {
    SingleSigner(KeyPair::from_seed(&[1; 32]))
}

/// A state directory as joining leaves it, as far as is read here.
fn joined() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let trust = TrustFile {
        domain: label("lab"),
        group_key: signer().group_key().to_hex(),
        epoch: 1,
        dataplane_secret: to_hex(&[2; 16]),
    };
    std::fs::write(folder.path().join(TRUST_FILE), serde_json::to_vec(&trust).unwrap()).unwrap();
    std::fs::write(folder.path().join(IDENTITY_FILE), to_hex(&[3; 32])).unwrap();
    let member = join::Membership {
        name: label("h1"),
        role: Role::Planes,
        domain: label("lab"),
        controllers: vec!["127.0.0.1:1".into()],
    };
    let path = folder.path().join(join::MEMBERSHIP_FILE);
    std::fs::write(path, serde_json::to_vec(&member).unwrap()).unwrap();
    folder
}

fn put(version: u64, key: Key, entry: Entry) -> ToSwitch {
    let update = Update {
        target: label("h1"),
        key,
        version: Version(version),
        expected: Version::ZERO,
        change: Change::Put(entry),
    };
    let (header, proven) = sign_batch(&signer(), &label("lab"), 1, Version(version), vec![update]).unwrap();
    ToSwitch::Updates(SignedUpdates { header, updates: proven })
}

#[test]
fn it_has_the_list_of_controllers_and_nothing_else() {
    let folder = joined();
    let mut here = Switchless::open(folder.path(), &label("h1")).unwrap();
    let empty = FromSwitch::State { digest: StateDigest(0), entries: vec![], last: true };
    assert_eq!(here.answer(ToSwitch::SendState), [empty]);
    let list =
        Entry::Controllers(ControllersEntry { phase: 1, threshold: 1, members: [(1, [7; 32])].into() });
    let answers = here.answer(put(4, Key::Controllers, list.clone()));
    let [FromSwitch::Changed { entry, .. }, FromSwitch::Acks(acks)] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert_eq!((entry.as_ref(), acks.acks[0].result.is_ok()), (Some(&list), true));
    assert_eq!(verify_acks(&KeyPair::from_seed(&[3; 32]).public(), acks), Ok(()));
    let answers = here.answer(put(5, Key::Gateways, Entry::Gateways(vec![])));
    let [FromSwitch::Acks(acks)] = &answers[..] else { panic!("{answers:?}") };
    let Err(Refusal::Failed(why)) = &acks.acks[0].result else { panic!("{acks:?}") };
    assert!(why.contains("no switch"), "{why}");
    // It is there after a restart.
    let mut here = Switchless::open(folder.path(), &label("h1")).unwrap();
    let state = here.answer(ToSwitch::SendState);
    assert!(
        matches!(&state[..], [FromSwitch::State { entries, .. }] if *entries == [(Key::Controllers, Version(4))])
    );
    let asked = here.answer(ToSwitch::Ask { id: 7, question: Question::Counters });
    assert_eq!(asked, [FromSwitch::Answer { id: 7, answer: Answer::Error(NO_SWITCH.into()) }]);
    assert_eq!(
        here.answer(ToSwitch::ReadIdentity),
        [FromSwitch::Identity { key: KeyPair::from_seed(&[3; 32]).public() }]
    );
}
