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
        ("dir:/no/such/folder", "opening /no/such/folder"),
        ("mem:5Q", "'5Q' is no number of bytes"),
        ("mem:12K", "at least 1M"),
        ("mem:99999999999T", "at least 1M and less than"),
    ] {
        let said = open(text).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(said.contains(wanted), "{text}: {said}");
    }
}
