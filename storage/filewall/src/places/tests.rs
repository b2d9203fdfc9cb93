//! Tests of places.

use super::*;

fn zones() -> Zones {
    let mut zones = Zones::default();
    zones.add("/projects/secret").unwrap();
    zones.add("/home").unwrap();
    zones
}

#[test]
fn a_path_has_the_place_of_its_deepest_known_folder() {
    let zones = zones();
    let at = |path: &str| {
        let place = zones.place(path.as_bytes()).unwrap();
        (zones.path(place.node), place.exact)
    };
    assert_eq!(at("/"), ("/".to_string(), true));
    assert_eq!(at("/other/secret"), ("/".to_string(), false));
    assert_eq!(at("/projects"), ("/projects".to_string(), true));
    assert_eq!(at("/projects/public/secret"), ("/projects".to_string(), false));
    assert_eq!(at("/projects//secret/"), ("/projects/secret".to_string(), true));
    assert_eq!(at("/projects/secret/a/b"), ("/projects/secret".to_string(), false));
    assert_eq!(zones.place(b"/a/../projects"), None);
    let secret = zones.place(b"/projects/secret/x").unwrap().node;
    let projects = zones.place(b"/projects").unwrap().node;
    assert!(zones.within(secret, projects) && zones.within(secret, 0) && !zones.within(projects, secret));
}

#[test]
fn paths_that_are_none_are_refused() {
    let mut zones = Zones::default();
    assert!(zones.add("home").unwrap_err().to_string().contains("begin with '/'"));
    assert!(zones.add("/a/../b").unwrap_err().to_string().contains("'..'"));
    assert!(zones.trivial());
}

#[test]
fn a_path_is_put_together_from_what_was_seen() {
    let places = Places::default();
    let root = Handle::new(b"root").unwrap();
    places.learn_mount(&root, &Zones::default(), b"/");
    places.learn(b"dir", ROOT, b"root", Some(b"a"));
    places.learn(b"file", ROOT, b"dir", Some(b"b"));
    places.learn(b"orphan", ROOT, b"never seen", Some(b"c"));
    assert_eq!((places.path(b"file"), places.path(b"root")), ("/a/b".to_string(), "/".to_string()));
    assert_eq!((places.path(b"orphan"), places.path(b"unknown")), ("…/c".to_string(), "…/".to_string()));
    assert_eq!((places.get(b"file"), places.get(b"unknown"), places.len()), (Some(ROOT), None, 4));
}

#[test]
fn mounts_stay_known_under_other_paths_and_until_the_first_one_clients_are_to_come_again() {
    let mut zones = Zones::default();
    let places = Places::default();
    assert_eq!(places.unknown(), Status::Jukebox);
    let (root, below) = (Handle::new(b"root\0\0").unwrap(), Handle::new(b"below").unwrap());
    assert!(places.learn_mount(&root, &zones, b"") && !places.learn_mount(&root, &zones, b""));
    assert!(places.learn_mount(&below, &zones, b"/a/b"));
    assert_eq!(places.unknown(), Status::Stale);
    places.learn(b"file", ROOT, b"root", None);
    let node = zones.add("/a").unwrap();
    let others = places.under(&zones);
    assert_eq!(others.unknown(), Status::Stale);
    assert_eq!((others.get(b"root"), others.get(b"file")), (Some(ROOT), None));
    assert_eq!(others.get(b"below"), Some(Place { node, exact: false }));
    // Mounts without end.
    for number in 0..2 * MOUNTS_MAX as u32 {
        places.learn_mount(&Handle::new(&number.to_le_bytes()).unwrap(), &zones, b"/a");
    }
    assert_eq!(places.mounts().len(), MOUNTS_MAX);
}

#[test]
fn places_that_are_kept_are_known_again_under_the_same_paths() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("places");
    let zones = zones();
    let secret = zones.place(b"/projects/secret/x").unwrap();
    let places = Places::open(&path, &zones).unwrap();
    let batch = places.learn(b"file", secret, b"folder", Some(b"x"));
    places.write_down(batch, &zones);
    // What is learnt once more is not written once more.
    assert!(places.learn(b"file", secret, b"folder", Some(b"x")).is_empty());
    assert!(places.learn(b"file", secret, b"elsewhere", None).is_empty(), "its place is the same");
    let above = places.learn_above(b"top", 1);
    places.write_down(above, &zones);
    // Killed, and begun anew; what comes in does not disturb what was there.
    drop(places);
    for _ in 0..2 {
        let again = Places::open(&path, &zones).unwrap();
        assert_eq!((again.get(b"file"), again.above(b"top"), again.len()), (Some(secret), Some(1), 2));
    }
    // The end of a record was lost.
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
    let again = Places::open(&path, &zones).unwrap();
    assert_eq!((again.get(b"file"), again.above(b"top")), (Some(secret), None));
    // Other paths while it runs: what is known is worth nothing, and what those before still learn is not written.
    let mut others = zones.clone();
    others.add("/more").unwrap();
    let under = again.under(&others);
    let late = again.learn(b"late", secret, b"folder", None);
    again.write_down(late, &zones);
    let batch = under.learn(b"new", ROOT, b"folder", None);
    under.write_down(batch, &others);
    drop((again, under));
    let again = Places::open(&path, &others).unwrap();
    assert_eq!((again.get(b"new"), again.get(b"file"), again.get(b"late")), (Some(ROOT), None, None));
    // Other paths after a restart.
    drop(again);
    assert_eq!(Places::open(&path, &zones).unwrap().get(b"new"), None);
    assert_eq!(Places::open(&path, &others).unwrap().get(b"new"), None, "it began anew");
}

#[test]
fn what_nobody_looks_at_is_forgotten_and_counted() {
    let places = Places::default();
    places.learn(b"kept", ROOT, b"", None);
    for number in 0..PLACES_MAX as u32 * 3 / 2 {
        places.learn(&number.to_be_bytes(), ROOT, b"", None);
        if number % 1024 == 0 {
            assert!(places.get(b"kept").is_some());
        }
    }
    assert!(places.len() <= PLACES_MAX);
    assert!(places.forgotten.load(Ordering::Relaxed) > 0);
}
