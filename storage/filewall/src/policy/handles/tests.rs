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
    for length in 0..HANDLE_BYTES_MAX {
        assert_eq!(handles.open(&sealed.as_bytes()[..length], HERE), None, "cut to {length} bytes");
        assert_eq!(
            handles.open(&sealed.as_bytes()[HANDLE_BYTES_MAX - length..], HERE),
            None,
            "its last {length}"
        );
    }
    assert_eq!(handles.open(&[sealed.as_bytes(), &[0]].concat(), HERE), None, "with a byte more");
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
    let sealed = Handles::compile(&file, Home::kept(folder.path())).unwrap().seal(b"x", HERE).unwrap();
    let again = Handles::compile(&file, Home::kept(folder.path())).unwrap();
    assert!(again.open(sealed.as_bytes(), HERE).is_some());
    let mode = std::fs::metadata(folder.path().join("key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    std::fs::write(folder.path().join("key"), b"short").unwrap();
    for keeps in [true, false] {
        let home = Home { folder: folder.path(), keeps };
        assert!(Handles::compile(&file, home).unwrap_err().to_string().contains("less than 32 bytes"));
    }
}

#[test]
fn what_is_remembered_is_what_was_computed_also_when_there_is_more_of_it_than_space() {
    let handles = policy(Bind::Client);
    let server = |number: u32| [&b"server"[..], &number.to_be_bytes()].concat();
    for round in 0..2 {
        for number in 0..memo::SLOTS as u32 * 2 {
            let sealed = handles.seal(&server(number), HERE).unwrap();
            assert_eq!(
                handles.open(sealed.as_bytes(), HERE).unwrap().as_bytes(),
                server(number),
                "round {round}"
            );
            assert_eq!(handles.open(sealed.as_bytes(), THERE), None);
        }
    }
    let other = Handles::new(&[8; KEY_BYTES], Bind::Client);
    let sealed = handles.seal(b"x", HERE).unwrap();
    assert!(handles.open(sealed.as_bytes(), HERE).is_some());
    assert_eq!(other.open(sealed.as_bytes(), HERE), None, "what another policy remembers is not asked");
    assert_ne!(other.seal(b"x", HERE).unwrap(), sealed);
}

#[test]
fn a_handle_above_the_export_is_marked_and_good_for_nfsv4_only() {
    let handles = policy(Bind::Client);
    let handle = Handle::new(b"pseudo").unwrap();
    let [marked, plain] = [true, false].map(|above| handles.seal_handle(OpenHandle { handle, above }, HERE));
    assert_ne!(marked, plain);
    assert_eq!(
        handles.open_handle(OpenHandle { handle: marked, above: false }, HERE).map(|open| open.above),
        Ok(true)
    );
    assert_eq!(
        handles.open_handle(OpenHandle { handle: plain, above: false }, HERE).map(|open| open.above),
        Ok(false)
    );
    assert_eq!(handles.open(marked.as_bytes(), HERE), None);
    let forged = OpenHandle { handle, above: false };
    assert_eq!(handles.open_handle(forged, HERE), Err(Status::BadHandle));
}

#[test]
fn a_long_handle_is_sealed_if_zeros_make_it_long() {
    let handles = policy(Bind::Client);
    let mut long = [0; HANDLE4_BYTES_MAX];
    long[..SERVER_HANDLE_BYTES_MAX].fill(9);
    for length in [SERVER_HANDLE_BYTES_MAX, 64, 127, HANDLE4_BYTES_MAX] {
        let sealed = handles.seal(&long[..length], HERE).unwrap();
        assert_eq!(sealed.as_bytes().len(), HANDLE_BYTES_MAX);
        assert_eq!(handles.open(sealed.as_bytes(), HERE).unwrap().as_bytes(), &long[..length]);
    }
    long[SERVER_HANDLE_BYTES_MAX] = 1;
    assert_eq!(handles.seal(&long, HERE), None);
}
