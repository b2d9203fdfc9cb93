//! Frames of a session from anybody: never a panic, never more memory than came.

use tokio::runtime::Builder;
use weir_controller::driver::{read_frame, write_frame};
use weir_model::session::{ToActuator, ToController};

#[test]
fn fuzz_session_frames() {
    let runtime = Builder::new_current_thread().build().unwrap();
    let mut good = Vec::new();
    let frame = ToController::State { entries: Vec::new(), last: true };
    runtime.block_on(write_frame(&mut good, &frame)).unwrap();
    bolero::check!().with_iterations(20_000).with_type::<(Vec<u8>, usize, u8, Option<u32>)>().for_each(
        |(noise, at, flip, length)| {
            let mut mutated = good.clone();
            let place = at % mutated.len();
            mutated[place] ^= flip;
            mutated.extend_from_slice(noise);
            let mut framed = length.unwrap_or(noise.len() as u32).to_le_bytes().to_vec();
            framed.extend_from_slice(noise);
            for bytes in [noise, &mutated, &framed] {
                runtime.block_on(async {
                    let from_actuator = read_frame::<ToController>(&mut &bytes[..]).await;
                    let from_controller = read_frame::<ToActuator>(&mut &bytes[..]).await;
                    let header = bytes.first_chunk::<4>().map(|header| u32::from_le_bytes(*header) as usize);
                    let whole = header.is_some_and(|length| bytes.len() - 4 >= length);
                    assert!(whole || (from_actuator.is_err() && from_controller.is_err()));
                    if let Ok(frame) = from_actuator {
                        let mut again = Vec::new();
                        write_frame(&mut again, &frame).await.unwrap();
                        assert_eq!(read_frame::<ToController>(&mut &again[..]).await.unwrap(), frame);
                    }
                });
            }
        },
    );
}
