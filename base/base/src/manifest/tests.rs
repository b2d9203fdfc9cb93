#![allow(clippy::unwrap_used)]

use super::*;

fn made() -> (tempfile::TempDir, Manifest) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("log")).unwrap();
    fs::write(dir.path().join("seed"), "abc").unwrap();
    fs::write(dir.path().join("log/log.proof"), "1").unwrap();
    let mut manifest = Manifest::new("lab");
    assert!(manifest.holds(dir.path(), "seed").unwrap() && manifest.is_there(dir.path(), "log/log.proof"));
    assert!(!manifest.is_there(dir.path(), "other") && !manifest.holds(dir.path(), "seed").unwrap());
    manifest.write(dir.path()).unwrap();
    (dir, manifest)
}

#[test]
fn what_is_missing_or_changed_is_told() {
    let (dir, manifest) = made();
    assert_eq!(Manifest::read(dir.path()).unwrap().unwrap(), manifest);
    assert_eq!(manifest.check(dir.path()).unwrap(), []);
    fs::write(dir.path().join("log/log.proof"), "2").unwrap();
    assert_eq!(manifest.check(dir.path()).unwrap(), [], "it changes as it goes");
    fs::write(dir.path().join("seed"), "abd").unwrap();
    fs::remove_file(dir.path().join("log/log.proof")).unwrap();
    let wrong = [("log/log.proof".to_owned(), Wrong::Missing), ("seed".to_owned(), Wrong::Changed)];
    assert_eq!(manifest.check(dir.path()).unwrap(), wrong);
}

#[test]
fn a_change_that_a_crash_interrupts_is_no_damage() {
    let (dir, mut manifest) = made();
    manifest.will_hold(dir.path(), "seed", b"new").unwrap();
    manifest.write(dir.path()).unwrap();
    assert_eq!(manifest.check(dir.path()).unwrap(), [], "not changed yet");
    fs::write(dir.path().join("seed"), "new").unwrap();
    assert_eq!(manifest.check(dir.path()).unwrap(), []);
    assert!(manifest.holds(dir.path(), "seed").unwrap());
    fs::write(dir.path().join("seed"), "abc").unwrap();
    assert_eq!(manifest.check(dir.path()).unwrap(), [("seed".to_owned(), Wrong::Changed)], "an older one");
}

/// Bits of either copy, each copy cut, gone, each copy older: the other stands for it, and it is made again.
#[test]
fn one_copy_stands_for_the_other() {
    let (dir, mut manifest) = made();
    let older = manifest.to_text();
    manifest.write(dir.path()).unwrap();
    let good = manifest.to_text();
    for name in FILES {
        let path = dir.path().join(name);
        let mut damages: Vec<Option<Vec<u8>>> =
            vec![None, Some(Vec::new()), Some(older.clone().into_bytes())];
        for bit in (0..8 * good.len()).step_by(11) {
            let mut bytes = good.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            damages.push(Some(bytes));
        }
        damages.extend((0..good.len()).step_by(9).map(|end| Some(good.as_bytes()[..end].to_vec())));
        for damage in damages {
            match damage {
                Some(bytes) => fs::write(&path, bytes).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            assert_eq!(Manifest::read(dir.path()).unwrap().unwrap(), manifest);
            assert_eq!(fs::read_to_string(&path).unwrap(), good);
        }
    }
    FILES.into_iter().for_each(|name| fs::write(dir.path().join(name), "weir").unwrap());
    assert!(matches!(Manifest::read(dir.path()), Err(ManifestError::Damaged { .. })));
    FILES.into_iter().for_each(|name| fs::remove_file(dir.path().join(name)).unwrap());
    assert_eq!(Manifest::read(dir.path()).unwrap(), None);
}

#[test]
fn whatever_is_in_a_copy_is_read_or_refused() {
    bolero::check!().with_iterations(2_000).with_type::<Vec<u8>>().for_each(|bytes| {
        let _ = parse(bytes);
        let crc = crc32c::crc32c(bytes);
        let _ = parse(&[bytes, format!("crc {crc:08x}\n").as_bytes()].concat());
    });
    for name in ["../x", "/etc", "a//b", "", "."] {
        let body = format!("{HEAD}\ndomain d\ngeneration 1\nthere {name}\n");
        assert_eq!(parse(format!("{body}crc {:08x}\n", crc32c::crc32c(body.as_bytes())).as_bytes()), None);
    }
}

#[test]
fn what_is_there_is_written_down_once_and_anew_only_when_asked() {
    const WATCHED: Watched = Watched { held: &["key"], there: &["log"] };
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let made = || Some(Manifest::new("lab"));
    assert_eq!(WATCHED.record(dir, false, || None).unwrap(), None, "nothing to lose");
    assert_eq!(Manifest::read(dir).unwrap(), None);
    fs::write(dir.join("key"), "one").unwrap();
    let first = WATCHED.record(dir, false, made).unwrap().unwrap();
    assert_eq!(first.files.keys().collect::<Vec<_>>(), ["key"]);
    // Nothing is new: nothing is written.
    assert_eq!(WATCHED.record(dir, false, made).unwrap().unwrap().generation, first.generation);
    fs::write(dir.join("log"), "").unwrap();
    let second = WATCHED.record(dir, false, made).unwrap().unwrap();
    assert_eq!((second.generation, second.files.len()), (first.generation + 1, 2));
    // A content that was announced is right before and after; another one is not, and is not taken for right by itself.
    Manifest::announce(dir, "key", b"two").unwrap();
    let problems = || in_words(Manifest::read(dir).unwrap().unwrap().check(dir).unwrap());
    assert_eq!(problems(), [""; 0]);
    fs::write(dir.join("key"), "two").unwrap();
    assert_eq!(problems(), [""; 0]);
    fs::write(dir.join("key"), "three").unwrap();
    fs::remove_file(dir.join("log")).unwrap();
    WATCHED.record(dir, false, made).unwrap();
    assert_eq!(problems(), ["'key' is damaged, or of another time or place", "'log' is missing"]);
    WATCHED.record(dir, true, made).unwrap();
    assert_eq!(problems(), [""; 0]);
}
