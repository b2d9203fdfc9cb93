//! Many writers beside a reader: no record is torn, none is handed out twice, and what is missing is counted.

use std::sync::atomic::{AtomicBool, Ordering};
use weir_sensor::{Directory, Kind, SensorBox, Shape, View};

const WRITERS: u64 = 3;
const RECORDS_EACH: u64 = 40_000;

#[test]
fn records_of_racing_writers_are_whole_unique_and_accounted_for() {
    let made = SensorBox::create("race", Shape { sensors: 4, records: 64 }, 1_000_000).unwrap();
    let sensor = made.add("events", Kind::Event).unwrap();
    let mut view = View::of_process("race", made.memory()).unwrap();
    let done = AtomicBool::new(false);
    let (mut seen, mut lost) = (0_u64, 0_u64);
    let mut last = None;
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let made = &made;
                scope.spawn(move || {
                    for n in 0..RECORDS_EACH {
                        let mark = writer << 32 | n;
                        let mut value = [0; 40];
                        for (index, part) in value.chunks_mut(8).enumerate() {
                            part.copy_from_slice(&mark.wrapping_mul(index as u64 + 1).to_ne_bytes());
                        }
                        made.record(sensor, &value);
                    }
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            loop {
                let ended = done.load(Ordering::Acquire);
                let found = view.fetch(|record| {
                    let mark = record.words[0];
                    for (index, word) in record.words.iter().enumerate() {
                        assert_eq!(*word, mark.wrapping_mul(index as u64 + 1), "a torn record");
                    }
                    assert!(last < Some(record.number), "{} after {last:?}", record.number);
                    last = Some(record.number);
                });
                assert_eq!(found.lies, 0);
                seen += found.records;
                lost += found.lost;
                if ended && found.records == 0 && found.lost == 0 {
                    break;
                }
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Release);
        reader.join().unwrap();
    });
    assert_eq!(seen + lost, WRITERS * RECORDS_EACH);
    assert!(seen > 0);
}

#[test]
fn a_box_is_found_by_name_read_and_gone_after_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let directory = Directory::new(folder.path());
    let made = SensorBox::create("web", Shape::default(), 5_000_000).unwrap();
    let requests = made.add("requests", Kind::Counter).unwrap();
    let queue = made.add("queue", Kind::Gauge).unwrap();
    let errors = made.add("errors", Kind::Event).unwrap();
    made.export(&directory).unwrap();
    assert_eq!(directory.list().unwrap().len(), 1);
    let mut view = directory.discover("web").unwrap();
    assert_eq!((view.name(), view.period_ns(), view.closed()), ("web", 5_000_000, false));
    made.count(requests, 3);
    made.count(requests, 4);
    made.set(queue, 9);
    assert!(made.record(errors, b"timeout"));
    assert!(!made.record(errors, &[0; 41]), "longer than a record");
    assert_eq!(view.value(view.find("requests").unwrap()), Some(7));
    assert_eq!(view.updates(requests.slot()), Some(2));
    assert_eq!(view.value(queue.slot()), Some(9));
    let mut texts = Vec::new();
    view.fetch(|record| texts.push(record.value().collect::<Vec<u8>>()));
    assert_eq!(texts, [b"timeout".to_vec()]);
    made.remove(queue);
    assert_eq!(view.sensors().len(), 2);
    made.record(errors, b"again");
    assert_eq!(view.flush(), 1);
    assert_eq!(view.fetch(|_| panic!("it was flushed")).records, 0);
    made.destroy();
    assert!(view.closed());
    assert!(directory.list().unwrap().is_empty());
    assert!(directory.discover("web").is_err());
}
