use super::*;
use crate::join::Membership;
use std::path::PathBuf;
use weir_base::manifest::FILES;
use weir_model::Label;
use weir_model::event::Role;

/// The state directory of a host that has joined and run.
struct Scene {
    folder: tempfile::TempDir,
}

/// How a file is spoilt.
#[derive(Clone, Copy, Debug)]
enum Spoilt {
    Deleted,
    OneBit,
    Older,
    Empty,
}

fn put(dir: &Path, name: &str, bytes: &[u8]) {
    let path = dir.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

impl Scene {
    fn new() -> Scene {
        let scene = Scene { folder: tempfile::tempdir().unwrap() };
        for name in HELD.iter().chain(THERE) {
            put(scene.dir(), name, format!("{name}, the first content").as_bytes());
        }
        let label = |text: &str| Label::new(text).unwrap();
        let member = Membership {
            name: label("h1"),
            role: Role::Host,
            domain: label("east"),
            controllers: vec!["c1:7444".into()],
        };
        put(scene.dir(), MEMBERSHIP_FILE, &serde_json::to_vec(&member).unwrap());
        record(scene.dir());
        assert_eq!(problems(scene.dir()).unwrap(), Vec::<String>::new());
        scene
    }

    fn dir(&self) -> &Path {
        self.folder.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    fn spoil(&self, name: &str, how: Spoilt, older: &[u8]) {
        let path = self.path(name);
        match how {
            Spoilt::Deleted => std::fs::remove_file(path).unwrap(),
            Spoilt::OneBit => {
                let mut bytes = std::fs::read(&path).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                std::fs::write(path, bytes).unwrap();
            }
            Spoilt::Older => std::fs::write(path, older).unwrap(),
            Spoilt::Empty => std::fs::write(path, "").unwrap(),
        }
    }
}

#[test]
fn each_file_that_is_deleted_damaged_or_older_is_refused_with_its_name_and_cure() {
    for &name in HELD {
        for how in [Spoilt::Deleted, Spoilt::OneBit, Spoilt::Older, Spoilt::Empty] {
            let scene = Scene::new();
            let older = std::fs::read(scene.path(name)).unwrap();
            // It changes as it should, and then the copy from before comes back.
            write(scene.dir(), name, b"the second content", 0o600).unwrap();
            record(scene.dir());
            check(scene.dir()).unwrap_or_else(|error| panic!("{name}: {error}"));
            scene.spoil(name, how, &older);
            if name == MEMBERSHIP_FILE && matches!(how, Spoilt::Deleted) {
                // That is how an operator has it join anew; with anything else gone it is damage.
                check(scene.dir()).unwrap();
                scene.spoil(IDENTITY_FILE, how, &older);
                assert!(check(scene.dir()).unwrap_err().to_string().contains("'membership.json' is missing"));
                continue;
            }
            let error = check(scene.dir()).unwrap_err().to_string();
            let file = format!("'{name}'");
            assert!(
                error.contains(&file) && error.contains("weir state accept --state"),
                "{name} {how:?}: {error}"
            );
        }
    }
    for &name in THERE {
        let scene = Scene::new();
        // These change as they go.
        put(scene.dir(), name, b"what came since");
        check(scene.dir()).unwrap();
        scene.spoil(name, Spoilt::Deleted, b"");
        let error = check(scene.dir()).unwrap_err().to_string();
        assert!(error.contains(&format!("'{name}' is missing")), "{error}");
    }
}

#[test]
fn one_copy_of_the_manifest_is_enough_and_two_damaged_ones_are_told() {
    for name in FILES {
        for how in [Spoilt::Deleted, Spoilt::OneBit, Spoilt::Empty] {
            let scene = Scene::new();
            scene.spoil(name, how, b"");
            check(scene.dir()).unwrap_or_else(|error| panic!("{name} {how:?}: {error}"));
            check(scene.dir()).unwrap();
        }
    }
    let scene = Scene::new();
    FILES.iter().for_each(|name| scene.spoil(name, Spoilt::OneBit, b""));
    let error = check(scene.dir()).unwrap_err().to_string();
    assert!(error.contains("damaged"), "{error}");
}

/// At any moment of a change.
#[test]
fn a_crash_between_the_manifest_and_the_file_is_no_damage() {
    let scene = Scene::new();
    let before = std::fs::read(scene.path(CERTIFICATE_FILE)).unwrap();
    write(scene.dir(), CERTIFICATE_FILE, b"new", 0o644).unwrap();
    // The file was not written any more; or it was, and the next start writes it down.
    for content in [before.as_slice(), b"new"] {
        put(scene.dir(), CERTIFICATE_FILE, content);
        check(scene.dir()).unwrap();
    }
    record(scene.dir());
    put(scene.dir(), CERTIFICATE_FILE, &before);
    assert!(check(scene.dir()).is_err(), "the older one is over");
}

#[test]
fn a_directory_without_a_manifest_is_taken_and_gets_one_when_it_has_joined() {
    let folder = tempfile::tempdir().unwrap();
    check(folder.path()).unwrap();
    record(folder.path());
    assert!(!folder.path().join(FILES[0]).exists() && !is_host(folder.path()));
    let scene = Scene::new();
    FILES.iter().for_each(|name| scene.spoil(name, Spoilt::Deleted, b""));
    check(scene.dir()).unwrap();
    record(scene.dir());
    scene.spoil(IDENTITY_FILE, Spoilt::Deleted, b"");
    assert!(check(scene.dir()).is_err() && is_host(scene.dir()));
}

#[test]
fn an_operator_may_take_it_as_it_is_and_the_host_joins_anew() {
    let scene = Scene::new();
    scene.spoil("switch.numbers", Spoilt::Deleted, b"");
    let generation = accept(scene.dir()).unwrap();
    check(scene.dir()).unwrap();
    assert!(generation > 1 && scene.path(MEMBERSHIP_FILE).exists(), "it is a member still");
    scene.spoil(IDENTITY_FILE, Spoilt::Deleted, b"");
    assert!(check(scene.dir()).is_err());
    accept(scene.dir()).unwrap();
    check(scene.dir()).unwrap();
    assert!(!scene.path(MEMBERSHIP_FILE).exists(), "without its key it is none");
    assert_eq!(membership(scene.dir()).unwrap(), None);
}
