use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

proptest! {
    #[test]
    fn it_is_a_bounded_queue(steps in proptest::collection::vec(proptest::option::of(0_usize..300), 1..600)) {
        let (mut producer, mut consumer) = frame_ring::<u32>(8, 1000);
        let mut model: VecDeque<(u32, Vec<u8>)> = VecDeque::new();
        let mut pushed = 0_u32;
        for step in steps {
            match step {
                Some(length) => {
                    let frame: Vec<u8> = (0..length).map(|i| (i as u32 ^ pushed) as u8).collect();
                    let (a, b) = frame.split_at(length / 3);
                    if producer.push(pushed, &[a, b]).is_ok() {
                        model.push_back((pushed, frame));
                    } else {
                        prop_assert!(!model.is_empty(), "an empty ring takes a frame that fits");
                    }
                    pushed += 1;
                }
                None => {
                    let seen = consumer.peek().map(|(header, frame)| (header, frame.to_vec()));
                    prop_assert_eq!(seen, model.pop_front());
                    consumer.pop();
                }
            }
            prop_assert!(model.len() <= 8);
            prop_assert!(model.iter().map(|(_, frame)| frame.len()).sum::<usize>() <= 1000);
        }
    }
}

#[test]
fn two_threads_see_the_same_frames() {
    let (mut producer, mut consumer) = frame_ring::<u64>(64, 16_384);
    let sender = std::thread::spawn(move || {
        for number in 0..100_000_u64 {
            let frame = vec![number as u8; 1 + (number % 700) as usize];
            while producer.push(number, &[&frame]).is_err() {
                std::thread::yield_now();
            }
        }
    });
    let mut wanted = 0_u64;
    while wanted < 100_000 {
        let Some((number, frame)) = consumer.peek() else {
            std::thread::yield_now();
            continue;
        };
        assert_eq!(number, wanted);
        assert_eq!(frame.len(), 1 + (number % 700) as usize);
        assert!(frame.iter().all(|byte| *byte == number as u8));
        consumer.pop();
        wanted += 1;
    }
    sender.join().unwrap();
}
