use super::*;
use std::os::unix::fs::PermissionsExt;

fn fill(text: &'static str) -> impl FnOnce(&mut dyn Write) -> Result<(), Failure> {
    move |out| out.write_all(text.as_bytes()).map_err(Failure::io("filling"))
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn what_is_there_is_replaced_only_when_that_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    write(&path, false, Readers::Owner, fill("one")).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let error = write(&path, false, Readers::Owner, fill("two")).unwrap_err().to_string();
    assert!(error.contains("--force"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "one");
    write(&path, true, Readers::Owner, fill("three")).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "three");
    assert_eq!(names(dir.path()), ["out"]);
}

#[test]
fn what_appears_meanwhile_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let meanwhile = |out: &mut dyn Write| {
        std::fs::write(&path, "theirs").unwrap();
        fill("ours")(out)
    };
    assert!(matches!(write(&path, false, Readers::Owner, meanwhile), Err(Failure::Refused(_))));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "theirs");
    assert_eq!(names(dir.path()), ["out"]);
}

#[test]
fn what_is_no_plain_file_is_left_alone_also_with_force() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, link, dangling) =
        (dir.path().join("kept"), dir.path().join("link"), dir.path().join("dangling"));
    std::fs::write(&kept, "kept").unwrap();
    std::os::unix::fs::symlink(&kept, &link).unwrap();
    std::os::unix::fs::symlink(dir.path().join("nowhere"), &dangling).unwrap();
    for path in [link.as_path(), dangling.as_path(), Path::new("/dev/null"), dir.path()] {
        for force in [false, true] {
            let result = write(path, force, Readers::Anybody, |_| -> Result<(), Failure> {
                panic!("nothing is made for {}", path.display())
            });
            assert!(matches!(result, Err(Failure::Refused(_))), "{}", path.display());
        }
    }
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "kept");
    assert_eq!(names(dir.path()), ["dangling", "kept", "link"]);
}

#[test]
fn a_failure_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    for force in [false, true] {
        let fails = |out: &mut dyn Write| -> Result<(), Failure> {
            out.write_all(b"secret").and_then(|()| out.flush()).unwrap();
            Err(Failure::Missing("gone".into()))
        };
        assert!(matches!(write(&path, force, Readers::Owner, fails), Err(Failure::Missing(_))));
        assert_eq!(names(dir.path()), Vec::<String>::new());
    }
    // Where a file must have a name from the start.
    let named = own_name(&path);
    let file = File::create(&named).unwrap();
    drop(Pending { path: &path, file, named: Some(named.clone()) });
    assert!(!named.exists());
    let file = File::create(&named).unwrap();
    Pending { path: &path, file, named: Some(named.clone()) }.keep(false).unwrap();
    assert_eq!(names(dir.path()), ["out"]);
}
