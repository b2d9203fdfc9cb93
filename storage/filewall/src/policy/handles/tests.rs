//! Tests of virtual handles.

use super::*;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

fn policy(bind: Bind) -> Handles {
    Handles::new(&[7; KEY_BYTES], bind)
}

#[test]
fn a_handle_comes_back_for_its_client_only() {
    let handles = policy(Bind::Client);
    for length in 0..=SERVER_HANDLE_BYTES_MAX {
        let server: Vec<u8> = (0..length as u8).collect();
        let sealed = handles.seal(&server, HERE).unwrap();
        assert_eq!(sealed.as_bytes().len(), HANDLE_BYTES_MAX);
        assert_eq!(handles.open(sealed.as_bytes(), HERE).unwrap().as_bytes(), server);
        assert_eq!(handles.open(sealed.as_bytes(), THERE), None, "another client's handle");
        assert_eq!(sealed, policy(Bind::Client).seal(&server, HERE).unwrap(), "the same after a restart");
    }
    assert_eq!(handles.seal(&[1; SERVER_HANDLE_BYTES_MAX + 1], HERE), None);
    let roaming = policy(Bind::Nothing);
    assert!(roaming.open(roaming.seal(b"x", HERE).unwrap().as_bytes(), THERE).is_some());
}

#[test]
fn a_handle_with_any_bit_changed_is_refused() {
    let handles = policy(Bind::Client);
    let sealed = handles.seal(&[1; 28], HERE).unwrap();
    for bit in 0..HANDLE_BYTES_MAX * 8 {
        let mut forged = sealed.as_bytes().to_vec();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(handles.open(&forged, HERE), None, "bit {bit}");
    }
    assert_eq!(handles.open(&[1; 28], HERE), None, "the server's own");
    assert_eq!(
        Handles::new(&[8; KEY_BYTES], Bind::Client).open(sealed.as_bytes(), HERE),
        None,
        "another key"
    );
}

#[test]
fn listings_are_asked_for_in_round_numbers_and_never_for_more() {
    for asked in [0, 1, 512, 1024, 1025, 4096, 8192, 1 << 20, u32::MAX] {
        let less = less_than(asked);
        assert!(less <= asked && (less == asked || less.is_multiple_of(512)), "{asked}: {less}");
        assert!(asked <= MAXCOUNT_MIN || less >= MAXCOUNT_MIN);
    }
}

#[test]
fn a_key_is_made_once_and_only_for_its_owner() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let file = HandlesFile { key_file: "key".into(), bind: Bind::Client };
    let sealed = Handles::compile(&file, folder.path()).unwrap().seal(b"x", HERE).unwrap();
    let again = Handles::compile(&file, folder.path()).unwrap();
    assert!(again.open(sealed.as_bytes(), HERE).is_some());
    let mode = std::fs::metadata(folder.path().join("key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    std::fs::write(folder.path().join("key"), b"short").unwrap();
    assert!(Handles::compile(&file, folder.path()).unwrap_err().contains("less than 32 bytes"));
}
