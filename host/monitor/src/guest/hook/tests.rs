use super::*;
use std::os::unix::net::UnixListener;

fn asked(number: u64) -> Asked {
    let mut program = [0; 16];
    program[..8].copy_from_slice(b"a b\nrepa");
    Asked { number, measure: "tasks", process: 7, program }
}

#[test]
fn a_question_is_one_line_whatever_the_program_is_called() {
    assert_eq!(asked(3).line(), "repair 3 tasks 7 a_b?repa\n");
}

#[test]
fn only_a_whole_line_of_this_number_is_an_answer() {
    for (said, wanted) in [
        ("done 3\n", Some(true)),
        ("repair 3 tasks 7 x\r\nfailed 3\r\n", Some(false)),
        ("done 2\ndone 3", None),
        ("done 2\ndone 3\n", Some(true)),
        ("\u{fffd}done 3\n", None),
        ("", None),
    ] {
        assert_eq!(answer(said.as_bytes(), 3), wanted, "{said}");
    }
}

#[test]
fn who_does_not_answer_refuses_or_talks_on_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hook");
    let listener = UnixListener::bind(&path).unwrap();
    let answering = |what: &'static [u8]| {
        let listener = listener.try_clone().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // Who asked may have gone before it took everything.
            drop(stream.write_all(what));
            drop(stream.read_to_end(&mut Vec::new()));
        })
    };
    let long = Duration::from_secs(60);
    for (said, limit, wanted) in [
        (b"failed 1\n" as &[u8], long, "says that it failed"),
        (b"", Duration::from_millis(50), "does not answer"),
        (&[b'x'; 2 * ANSWER_BYTES_MAX], long, "does not answer"),
    ] {
        let other = answering(said);
        let error = ask(&path, &asked(1), limit).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
        other.join().unwrap();
    }
    let other = answering(b"done 1\n");
    ask(&path, &asked(1), long).unwrap();
    other.join().unwrap();
    assert!(ask(&folder.path().join("none"), &asked(1), long).is_err());
}

#[test]
fn any_answer_is_read_without_harm() {
    bolero::check!().for_each(|said: &[u8]| {
        if answer(said, 1).is_some() {
            assert!(said.contains(&b'\n'));
        }
    });
}
