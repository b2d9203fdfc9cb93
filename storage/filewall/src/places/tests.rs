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
    assert!(zones.add("home").unwrap_err().contains("begin with '/'"));
    assert!(zones.add("/a/../b").unwrap_err().contains("'..'"));
    assert!(zones.trivial());
}

#[test]
fn a_path_is_put_together_from_what_was_seen() {
    let places = Places::default();
    let root = Handle::new(b"root").unwrap();
    places.learn_mount(&root, ROOT, b"/");
    places.learn(b"dir", ROOT, b"root", Some(b"a"));
    places.learn(b"file", ROOT, b"dir", Some(b"b"));
    places.learn(b"orphan", ROOT, b"never seen", Some(b"c"));
    assert_eq!((places.path(b"file"), places.path(b"root")), ("/a/b".to_string(), "/".to_string()));
    assert_eq!((places.path(b"orphan"), places.path(b"unknown")), ("…/c".to_string(), "…/".to_string()));
    assert_eq!((places.get(b"file"), places.get(b"unknown"), places.len()), (Some(ROOT), None, 4));
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
