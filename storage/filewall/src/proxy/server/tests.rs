//! Tests of server addresses.

use super::*;

#[test]
fn addresses_are_read_as_clients_write_them() {
    let server: Server = "nfs://10.0.0.5/export/data/?nfsport=12049&mountport=12050".parse().unwrap();
    assert_eq!(server.nfs(), "10.0.0.5:12049".parse().unwrap());
    assert_eq!((server.mount_port, server.path.as_str()), (Some(12050), "/export/data"));
    let server: Server = "nfs://[::1]/".parse().unwrap();
    assert_eq!((server.nfs().to_string().as_str(), server.path.as_str()), ("[::1]:2049", "/"));
    for (text, words) in [
        ("10.0.0.5:/x", "nfs://"),
        ("nfs://10.0.0.5/x?nfsport=a", "'a' is no port"),
        ("nfs://10.0.0.5/x?port=1", "'port' is no option"),
    ] {
        let error = text.parse::<Server>().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn only_paths_below_the_export_are_served() {
    let server: Server = "nfs://127.0.0.1/export".parse().unwrap();
    assert_eq!(server.below(b"/export/a"), Some(&b"/a"[..]));
    assert_eq!(server.below(b"/export"), Some(&b""[..]));
    assert_eq!(server.below(b"/exported"), None);
    assert_eq!(server.below(b"/"), None);
}
