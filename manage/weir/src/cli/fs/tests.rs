use super::*;

#[test]
fn a_daemon_that_says_more_than_a_pipe_holds_ends_and_its_last_words_are_kept() {
    let script = "head -c 300000 /dev/zero | tr '\\0' x >&2; echo the reason >&2; exit 3";
    let mut command = std::process::Command::new("sh");
    let mut child = command.args(["-c", script]).stderr(Stdio::piped()).spawn().unwrap();
    let words = words_of(&mut child);
    assert_eq!(child.wait().unwrap().code(), Some(3));
    let words = words.join().unwrap();
    assert!(words.len() == WORDS_BYTES_MAX && words.ends_with("xthe reason\n"), "{}", words.len());
}
