use super::*;
use crate::testing::label;

#[test]
fn a_signature_is_drawn_once_and_another_directory_has_another() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = Owner::open(one.path(), &label("host-1")).unwrap();
    assert_eq!(Owner::open(one.path(), &label("host-1")).unwrap(), first);
    let second = Owner::open(two.path(), &label("host-1")).unwrap();
    assert_eq!(first.whose([first.name(3).as_str()].into_iter()), Whose::Ours);
    assert_eq!(first.whose(["eth0", "weir.x", "weir.1.2.3.4"].into_iter()), Whose::Unsigned);
    let Whose::Other(words) = first.whose(["enp1s0", second.name(3).as_str()].into_iter()) else {
        panic!("it is the other's")
    };
    assert_eq!(words, format!("host 'host-1' (signature {})", second.signature));
}

#[test]
fn the_longest_names_fit_the_kernels_limit_and_are_told_with_the_domain() {
    let long = "a".repeat(63);
    let owner = Owner { signature: "0".repeat(DIGITS), host: word(&long), domain: word(&long) };
    let other = Owner { signature: "1".repeat(DIGITS), host: "host-2".into(), domain: "prod".into() };
    let name = owner.name(u32::MAX);
    assert!(name.len() <= 127, "{}", name.len());
    let Whose::Other(words) = owner.whose([other.name(7).as_str()].into_iter()) else {
        panic!("it is the other's")
    };
    assert_eq!(words, "host 'host-2' of domain 'prod' (signature 1111111111111111)");
}

#[test]
fn a_broken_signature_is_an_error_and_no_new_one() {
    let state = tempfile::tempdir().unwrap();
    std::fs::write(state.path().join(OWNER_FILE), "12").unwrap();
    let error = Owner::open(state.path(), &label("host-1")).unwrap_err();
    assert!(error.to_string().contains(OWNER_FILE), "{error}");
}
