//! Implicit updates: a value that the publisher never publishes, read from its memory.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_sensor::{Directory, Kind, Registration, SensorBox, Shape};

#[test]
fn a_reference_is_followed_into_the_memory_of_who_registered_it_and_of_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let directory = Directory::new(folder.path());
    let word = AtomicU64::new(7);
    let made = SensorBox::create("web", Shape::default(), 1_000_000).unwrap();
    let own = made.refer("requests", (&raw const word) as u64).unwrap();
    let plain = made.add("plain", Kind::Counter).unwrap();
    let nowhere = made.refer("nowhere", 8).unwrap();
    made.count(plain, 3);
    made.export(&directory).unwrap();
    let view = directory.discover("web").unwrap();
    assert_eq!((view.follow(own.slot()), view.value_of("requests")), (Some(7), Some(7)));
    word.store(9, Ordering::Relaxed);
    assert_eq!(
        (view.follow(own.slot()), view.updates(own.slot())),
        (Some(9), Some(0)),
        "nothing was published"
    );
    assert_eq!((view.follow(plain.slot()), view.follow(nowhere.slot())), (Some(3), None));
    assert_eq!(view.follow(u32::MAX), None);

    // A registration of another user for this process is nobody's box.
    let registration: Registration = directory.list().unwrap().remove(0);
    assert_eq!(registration.user, std::fs::metadata("/proc/self").unwrap().uid());
    let of_another = Registration { user: registration.user + 1, ..registration };
    let refused = of_another.open().map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("is not of user"), "{refused}");
}
