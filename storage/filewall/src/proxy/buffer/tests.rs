//! Tests of input and output.

use super::*;
use proptest::prelude::*;

/// Takes a few bytes at a time, then would block.
struct Narrow {
    taken: Vec<u8>,
    left: usize,
}

impl Write for Narrow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let here = bytes.len().min(self.left);
        if here == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.taken.extend_from_slice(&bytes[..here]);
        self.left -= here;
        Ok(here)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut all = 0;
        for slice in slices {
            match self.write(slice) {
                Ok(sent) => all += sent,
                Err(_) if all > 0 => return Ok(all),
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

proptest! {
    #[test]
    fn parts_arrive_in_order_whatever_the_receiver_takes(
        parts in prop::collection::vec((any::<bool>(), 0usize..300), 0..300), steps in prop::collection::vec(1usize..5000, 1..50),
    ) {
        let input: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        let (mut output, mut wanted, mut at) = (Output::default(), Vec::new(), 0);
        for (number, (head, bytes)) in parts.iter().enumerate() {
            if *head {
                let written = vec![number as u8; *bytes];
                output.head(|out| out.extend_from_slice(&written));
                wanted.extend(written);
            } else {
                output.body(at..at + bytes);
                wanted.extend_from_slice(&input[at..at + bytes]);
                at += bytes;
            }
        }
        prop_assert_eq!(output.bytes(), wanted.len());
        let mut narrow = Narrow { taken: Vec::new(), left: 0 };
        for step in steps.iter().cycle().take(100_000) {
            narrow.left += step;
            if output.flush(&mut narrow, &input).unwrap() {
                break;
            }
        }
        prop_assert_eq!(&narrow.taken, &wanted);
        prop_assert!(output.is_empty() && !output.pins_input() && output.bytes() == 0);
    }
}

#[test]
fn bytes_that_an_output_refers_to_stay_where_they_are() {
    let mut input = Input::default();
    input.space(true)[..10].copy_from_slice(b"0123456789");
    input.received(INPUT_BYTES);
    input.consume(INPUT_BYTES - 10);
    let start = input.start();
    assert!(input.space(false).is_empty(), "no space that would move them");
    assert_eq!(input.start(), start);
    assert_eq!(input.space(true).len(), INPUT_BYTES - 10);
    assert_eq!((input.start(), input.available()), (0, 10));
}
