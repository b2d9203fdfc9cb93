use super::*;

/// What version 1 says of a TAP and of the underlay, as bytes.
const FIXTURE: &str = include_str!("../store-v1.txt");

fn words() -> [Words; 2] {
    let label = |text: &str| weir_model::Label::new(text.to_string()).unwrap();
    let underlay = KeptUnderlay {
        address: ("192.0.2.1".parse().unwrap(), 6081, 4789),
        receivers: vec![Encapsulation::Geneve, Encapsulation::Vxlan],
        senders: vec![Encapsulation::Geneve, Encapsulation::Vxlan],
    };
    let tap = CarriedTap {
        key: Some(Key::Port { vni: weir_model::entry::Vni(7), endpoint: label("a") }),
        netns: Some("ns".into()),
        device: "t0".into(),
    };
    [Words::Underlay(underlay), Words::Tap(tap)]
}

#[test]
fn the_words_of_version_1_are_what_they_were() {
    let hexadecimal = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let now = words().map(|words| hexadecimal(words.to_bytes()));
    let kept: Vec<&str> = FIXTURE.lines().collect();
    assert_eq!(
        now.as_slice(),
        kept,
        "a release before would read other devices: raise the version\n{}",
        now.join("\n")
    );
}

#[test]
fn words_of_another_version_and_nonsense_are_let_go() {
    for words in words() {
        let mut bytes = words.to_bytes();
        assert_eq!(Words::from_bytes(&bytes), Some(words));
        bytes[0] += 1;
        assert_eq!(Words::from_bytes(&bytes), None);
    }
    assert_eq!(Words::from_bytes(&[1]), None);
    bolero::check!().for_each(|bytes: &[u8]| drop(Words::from_bytes(bytes)));
}

#[test]
fn without_a_supervisor_nothing_is_found_and_nothing_waits() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::new(directory.path());
    assert!(store.find().taken.taps.is_empty());
    let file = Arc::new(OwnedFd::from(tempfile::tempfile().unwrap()));
    let [_, tap] = words();
    store.keep(tap, vec![file]);
    store.settle();
    store.release_underlay();
    assert_eq!(store.things.len(), 1, "it is told to a supervisor that comes later");
}
