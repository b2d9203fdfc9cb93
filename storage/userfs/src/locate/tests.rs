//! Texts that are right, and what is said about those that are not.

use super::open;

#[test]
fn texts_name_backends_or_say_what_is_wrong() {
    assert!(open("mem:").is_ok() && open("mem:16M").is_ok() && open("dir:/").is_ok());
    for (text, wanted) in [
        ("mem", "no kind; there are dir:FOLDER"),
        ("tape:/x", "'tape' is no kind of backend"),
        ("dir:", "name the folder"),
        ("archive:", "name the file"),
        ("archive:/etc/passwd", "/etc/passwd: it is no tar, tar.gz, zip or gz"),
        ("sftp:nowhere", "give user, host and folder: sftp:user@host:/srv/data"),
        ("sftp:-oProxyCommand=x:/", "give user, host and folder"),
        ("nfs:server", "give host and exported folder"),
        ("nfs://server/x?port=1", "give host and exported folder"),
        ("s3:bucket", "give bucket and prefix"),
        ("s3://bucket/a/../b", "give bucket and prefix"),
        ("dir:/no/such/folder", "opening /no/such/folder"),
        ("mem:5Q", "'5Q' is no number of bytes"),
        ("mem:12K", "at least 1M"),
        ("mem:99999999999T", "at least 1M and less than"),
    ] {
        let said = open(text).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(said.contains(wanted), "{text}: {said}");
    }
}

#[test]
fn places_of_sftp_servers_are_understood() {
    use crate::remote::sftp::Target;
    let target = |destination: &str, port, path: &str| {
        Some(Target { destination: destination.to_owned(), port, path: path.to_owned() })
    };
    for (text, wanted) in [
        ("user@host:/srv", target("user@host", None, "/srv")),
        ("host:", target("host", None, "")),
        ("host:sub/folder", target("host", None, "sub/folder")),
        ("user@[fe80::1]:/x", target("user@fe80::1", None, "/x")),
        ("//user@host:2222/srv", target("user@host", Some(2222), "/srv")),
        ("//host/srv", target("host", None, "/srv")),
        ("//[::1]:22/x", target("::1", Some(22), "/x")),
        ("//host:port/srv", None),
        ("host", None),
        (":/srv", None),
        ("user@-host:/x", None),
    ] {
        assert_eq!(Target::parse(text), wanted, "{text}");
    }
}
