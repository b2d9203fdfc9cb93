//! Publishers that lie: lengths, heads, sequences, memory that shrinks. The reader neither crashes nor believes.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::unix::fs::FileExt;
use weir_sensor::{Directory, Kind, SensorBox, Shape, View, layout};

/// A sealed memory with these bytes in it.
fn memory(bytes: &[u8], seals: SealFlags) -> std::fs::File {
    let file = memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, bytes.len() as u64).unwrap();
    let file = std::fs::File::from(file);
    file.write_all_at(bytes, 0).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

/// The bytes of a sound box with one record.
fn sound() -> Vec<u8> {
    let made = SensorBox::create("sound", Shape { sensors: 2, records: 16 }, 1).unwrap();
    let sensor = made.add("event", Kind::Event).unwrap();
    made.record(sensor, b"value");
    let file = std::fs::File::from(made.memory().try_clone_to_owned().unwrap());
    let mut bytes = vec![0; Shape { sensors: 2, records: 16 }.bytes()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

#[test]
fn memory_that_may_shrink_is_refused() {
    let error = View::of_process("x", memory(&sound(), SealFlags::GROW)).unwrap_err();
    assert!(error.to_string().contains("F_SEAL_SHRINK"), "{error}");
    let file = tempfile::tempfile().unwrap();
    assert!(View::of_process("x", file).unwrap_err().to_string().contains("memfd_create"));
}

#[test]
fn lying_sizes_are_refused() {
    let cases = [
        (layout::header::SENSORS, u64::MAX),
        (layout::header::SENSORS, 4096),
        (layout::header::RECORDS, 1 << 20),
        (layout::header::RECORDS, 17),
        (layout::header::RECORDS, 0),
        (layout::header::VERSION, 2),
        (layout::header::MAGIC, 0),
    ];
    for (word, value) in cases {
        let mut bytes = sound();
        put(&mut bytes, word * 8, value);
        assert!(View::of_process("x", memory(&bytes, SealFlags::SHRINK)).is_err(), "word {word} = {value}");
    }
    assert!(
        View::of_process(
            "x",
            memory(&sound()[..Shape { sensors: 2, records: 16 }.bytes() - 8], SealFlags::SHRINK)
        )
        .is_err()
    );
    assert!(View::of_process("x", memory(&[0; 64], SealFlags::SHRINK)).is_err());
}

#[test]
fn heads_that_jump_are_loss_or_lies_and_never_records() {
    let file = memory(&sound(), SealFlags::SHRINK);
    let mut view = View::of_process("x", &file).unwrap();
    assert_eq!(view.fetch(|_| ()).records, 1);
    let set = |head: u64| file.write_all_at(&head.to_ne_bytes(), layout::header::HEAD as u64 * 8).unwrap();
    set(u64::MAX);
    let mut lost = 0;
    for _ in 0..200 {
        lost += view.fetch(|_| panic!("nothing was published")).lost;
    }
    assert!(lost > u64::MAX - 100);
    set(3);
    let found = view.fetch(|_| panic!("nothing was published"));
    assert_eq!(found.lies, 1);
}

#[test]
fn registrations_that_point_elsewhere_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let directory = Directory::new(folder.path());
    let write = |text: &str| std::fs::write(folder.path().join("evil.box"), text).unwrap();
    for text in ["", "1", "x y", "1 2 3", "99999999999 1", "-1 4", &"9".repeat(200)] {
        write(text);
        assert!(directory.discover("evil").is_err(), "{text}");
    }
    let (pipe, _other) = std::io::pipe().unwrap();
    let process = std::process::id();
    write(&format!("{process} {}", std::os::fd::AsRawFd::as_raw_fd(&pipe)));
    assert!(directory.discover("evil").unwrap_err().to_string().contains("is no memory"));
    assert!(directory.discover("../evil").is_err());
}

#[test]
fn a_writer_that_died_holds_nobody_up_for_long() {
    let mut bytes = sound();
    // A second record was claimed and never written, then a third one was written.
    let ring = 4096 + 2 * 128;
    put(&mut bytes, layout::header::HEAD * 8, 3);
    put(&mut bytes, ring + 64, 3);
    put(&mut bytes, ring + 128, 6);
    let mut view = View::of_process("x", memory(&bytes, SealFlags::SHRINK)).unwrap();
    let mut total = weir_sensor::Fetched::default();
    for _ in 0..5 {
        let found = view.fetch(|_| ());
        total.records += found.records;
        total.lost += found.lost;
    }
    assert_eq!((total.records, total.lost), (2, 1));
}

#[test]
fn any_bytes_are_read_without_harm() {
    let good = sound();
    bolero::check!().with_type::<Vec<(u16, u64)>>().for_each(|changes| {
        let mut bytes = good.clone();
        let words = bytes.len() / 8;
        for (at, value) in changes.iter().take(64) {
            put(&mut bytes, (*at as usize % words) * 8, *value);
        }
        let file = memory(&bytes, SealFlags::SHRINK);
        let Ok(mut view) = View::of_process("fuzz", file) else { return };
        for _ in 0..3 {
            let found = view.fetch(|record| assert!(record.value().count() <= layout::VALUE_BYTES));
            assert!(found.records <= view.shape().records);
        }
        for sensor in view.sensors() {
            assert!(sensor.name.len() <= 48);
        }
        view.flush();
    });
}

#[test]
fn a_publisher_that_writes_while_it_is_read_harms_nobody() {
    let file = memory(&sound(), SealFlags::SHRINK);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let words = file.metadata().unwrap().len() / 8;
            let mut state = 88172645463325252_u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                file.write_all_at(&state.to_ne_bytes(), (state % words) * 8).unwrap();
            }
        });
        let mut view = loop {
            if let Ok(view) = View::of_process("x", &file) {
                break view;
            }
            file.write_all_at(&sound(), 0).unwrap();
        };
        for _ in 0..2000 {
            view.fetch(|record| assert!(record.length as usize <= layout::VALUE_BYTES));
            view.sensors();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
