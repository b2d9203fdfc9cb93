use super::*;

#[test]
fn frames_survive_a_stream_and_refuse_what_is_not_theirs() {
    let mut stream = Vec::new();
    write_frame(&mut stream, &(7_u32, "red".to_string())).unwrap();
    write_frame(&mut stream, &(8_u32, "blue".to_string())).unwrap();
    let mut reader = stream.as_slice();
    assert_eq!(read_frame::<(u32, String)>(&mut reader).unwrap(), (7, "red".to_string()));
    assert_eq!(read_frame::<(u32, String)>(&mut reader).unwrap(), (8, "blue".to_string()));
    assert!(matches!(read_frame::<(u32, String)>(&mut reader), Err(CodecError::Closed)));
}

#[test]
fn a_cut_frame_is_an_error_and_not_an_end() {
    let mut stream = Vec::new();
    write_frame(&mut stream, &"abcdef".to_string()).unwrap();
    for cut in 1..stream.len() {
        let mut reader = &stream[..cut];
        assert!(matches!(read_frame::<String>(&mut reader), Err(CodecError::Io(_))), "cut at {cut}");
    }
}

#[test]
fn trailing_bytes_and_long_frames_are_refused() {
    let mut bytes = encode(&1_u8);
    bytes.push(0);
    assert!(matches!(decode::<u8>(&bytes), Err(CodecError::Trailing { extra: 1, .. })));
    assert!(matches!(frame_length([0xff; 4]), Err(CodecError::TooLong { .. })));
}
