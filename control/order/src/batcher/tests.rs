use super::*;

fn settings() -> BatcherSettings {
    BatcherSettings {
        operations_max: 3,
        batch_bytes_max: 100,
        operation_bytes_max: 200,
        linger_ns: 0,
        linger_above_operations: 0,
        in_flight_max: 2,
        queue_operations_max: 5,
        queue_bytes_max: 500,
    }
}

fn offer(batcher: &mut Batcher<u32>, ticket: u32, bytes: usize, now_ns: u64) -> Vec<Output<u32>> {
    let mut out = Vec::new();
    let operation = Bytes::from(vec![ticket as u8; bytes]);
    batcher.step(Input::Offer { ticket, operation, now_ns }, &mut out);
    out
}

fn finish(batcher: &mut Batcher<u32>, batch: u64, result: Result<Position, Error>) -> Vec<Output<u32>> {
    let mut out = Vec::new();
    batcher.step(Input::Finished { batch, result, now_ns: 0 }, &mut out);
    out
}

/// "p0:1,2" for a proposal of batch 0 with operations 1 and 2; "1@5.0" for a place; "1!" for an error.
fn text(out: &[Output<u32>]) -> String {
    let words: Vec<String> = out
        .iter()
        .map(|output| match output {
            Output::Propose { batch, bytes } => {
                let operations = decode(bytes).unwrap();
                let names: Vec<String> = operations.iter().map(|bytes| bytes[0].to_string()).collect();
                format!("p{batch}:{}", names.join(","))
            }
            Output::Reply { ticket, result: Ok(at) } => format!("{ticket}@{}.{}", at.batch.index, at.nth),
            Output::Reply { ticket, result: Err(_) } => format!("{ticket}!"),
        })
        .collect();
    words.join(" ")
}

fn ok(index: u64) -> Result<Position, Error> {
    Ok(Position { term: 1, index })
}

#[test]
fn two_in_flight_then_the_rest_gathers() {
    let mut batcher = Batcher::new(settings());
    assert_eq!(text(&offer(&mut batcher, 1, 1, 0)), "p0:1");
    assert_eq!(text(&offer(&mut batcher, 2, 1, 0)), "p1:2");
    for ticket in 3..8 {
        assert_eq!(text(&offer(&mut batcher, ticket, 1, 0)), "");
    }
    let refused = offer(&mut batcher, 8, 1, 0);
    assert!(matches!(refused[..], [Output::Reply { result: Err(Error::Overloaded { limit: 5, .. }), .. }]));
    assert_eq!(text(&finish(&mut batcher, 0, ok(1))), "1@1.0 p2:3,4,5");
    assert_eq!(text(&finish(&mut batcher, 1, Err(Error::Stopped))), "2! p3:6,7");
    assert_eq!(text(&finish(&mut batcher, 2, ok(2))), "3@2.0 4@2.1 5@2.2");
    let counters = batcher.counters();
    assert_eq!((counters.operations, counters.batches, counters.overloads, counters.failed), (7, 4, 1, 1));
}

#[test]
fn bytes_bound_batches_and_queue() {
    let mut batcher = Batcher::new(settings());
    assert_eq!(text(&offer(&mut batcher, 1, 150, 0)), "p0:1", "one large operation goes alone");
    assert!(matches!(
        offer(&mut batcher, 9, 201, 0)[..],
        [Output::Reply { result: Err(Error::TooLarge { bytes: 201, .. }), .. }]
    ));
    assert_eq!(text(&offer(&mut batcher, 2, 150, 0)), "p1:2");
    for ticket in [3, 4, 5] {
        assert_eq!(text(&offer(&mut batcher, ticket, 60, 0)), "");
    }
    assert_eq!(text(&offer(&mut batcher, 6, 180, 0)), "");
    assert_eq!(text(&offer(&mut batcher, 7, 180, 0)), "7!", "540 bytes would wait");
    assert_eq!(text(&finish(&mut batcher, 0, ok(1))), "1@1.0 p2:3");
    assert_eq!(text(&finish(&mut batcher, 1, ok(2))), "2@2.0 p3:4");
}

#[test]
fn a_linger_waits_for_time_or_a_full_batch() {
    let mut batcher = Batcher::new(BatcherSettings { linger_ns: 10, ..settings() });
    assert_eq!(batcher.wake_at_ns(), None);
    assert_eq!(text(&offer(&mut batcher, 1, 1, 5)), "");
    assert_eq!(batcher.wake_at_ns(), Some(15));
    let mut out = Vec::new();
    batcher.step(Input::Tick { now_ns: 14 }, &mut out);
    assert_eq!(text(&out), "");
    batcher.step(Input::Tick { now_ns: 15 }, &mut out);
    assert_eq!(text(&out), "p0:1");
    assert_eq!(text(&offer(&mut batcher, 2, 1, 20)), "");
    assert_eq!(text(&offer(&mut batcher, 3, 1, 21)), "");
    assert_eq!(text(&offer(&mut batcher, 4, 1, 22)), "p1:2,3,4");
    assert_eq!(text(&offer(&mut batcher, 5, 1, 23)), "");
    assert_eq!(batcher.wake_at_ns(), None, "two are in flight");
    batcher.stop_linger();
    assert_eq!(text(&finish(&mut batcher, 0, ok(1))), "1@1.0 p2:5");
}

#[test]
fn batches_decode_to_what_they_hold_and_nothing_else() {
    for operations in
        [vec![], vec![Bytes::from_static(b"")], vec![Bytes::from_static(b"ab"), Bytes::from_static(b"c")]]
    {
        let batch = encode(&operations);
        assert_eq!(decode(&batch).unwrap(), operations);
        for length in 0..batch.len() {
            assert!(decode(&batch[..length]).is_err());
        }
        let longer = [&batch[..], b"x"].concat();
        assert!(matches!(decode(&longer), Err(Error::Batch { .. })));
    }
    assert!(decode(&[255, 255, 255, 255, 0, 0, 0, 0]).is_err());
}

#[test]
fn a_lone_caller_waits_for_nobody_and_many_share_a_batch() {
    let mut batcher =
        Batcher::new(BatcherSettings { linger_ns: 10, linger_above_operations: 1, ..settings() });
    assert_eq!(text(&offer(&mut batcher, 1, 1, 0)), "p0:1");
    assert_eq!(text(&offer(&mut batcher, 2, 1, 1)), "p1:2");
    assert_eq!(text(&offer(&mut batcher, 3, 1, 2)), "");
    assert_eq!(text(&offer(&mut batcher, 4, 1, 3)), "");
    assert_eq!(text(&finish(&mut batcher, 0, ok(1))), "1@1.0 p2:3,4");
    assert_eq!(text(&finish(&mut batcher, 1, ok(2))), "2@2.0");
    // After two in one batch, the next wait for each other.
    assert_eq!(text(&finish(&mut batcher, 2, ok(3))), "3@3.0 4@3.1");
    assert_eq!(text(&offer(&mut batcher, 5, 1, 20)), "");
    assert_eq!(batcher.wake_at_ns(), Some(30));
    assert_eq!(text(&offer(&mut batcher, 6, 1, 25)), "");
    let mut out = Vec::new();
    batcher.step(Input::Tick { now_ns: 30 }, &mut out);
    assert_eq!(text(&out), "p3:5,6");
}
