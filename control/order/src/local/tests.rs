use super::*;

const SETTINGS: LocalSettings = LocalSettings { batch_bytes_max: 100, waiting_max: 3, write_bytes_max: 50 };

struct Talk {
    core: Local<u32>,
}

impl Talk {
    fn new(index: u64) -> Talk {
        Talk { core: Local::new(SETTINGS, Position { term: 4, index }) }
    }

    /// "w1,2" to write indices 1 and 2; "c1" committed; "7@1" proposal 7 has place 1; "7!" it has none.
    fn say(&mut self, input: Input<u32>) -> String {
        let mut out = Vec::new();
        self.core.step(input, &mut out);
        let words: Vec<String> = out
            .iter()
            .map(|output| match output {
                Output::Write { entries } => {
                    let indices: Vec<String> = entries.iter().map(|e| e.position.index.to_string()).collect();
                    format!("w{}", indices.join(","))
                }
                Output::Committed { entry } => format!("c{}", entry.position.index),
                Output::Done { ticket, result: Ok(at) } => {
                    assert_eq!(at.term, 5);
                    format!("{ticket}@{}", at.index)
                }
                Output::Done { ticket, result: Err(_) } => format!("{ticket}!"),
            })
            .collect();
        words.join(" ")
    }

    fn propose(&mut self, ticket: u32, bytes: usize) -> String {
        self.say(Input::Propose { ticket, batch: Bytes::from(vec![0; bytes]) })
    }
}

#[test]
fn what_comes_during_a_write_forms_the_next() {
    let mut talk = Talk::new(10);
    assert_eq!(talk.propose(1, 5), "w11");
    assert_eq!(talk.propose(2, 5), "");
    assert_eq!(talk.propose(3, 5), "");
    assert_eq!(talk.say(Input::Written { count: 1 }), "c11 1@11 w12,13");
    assert!(!talk.core.is_idle());
    assert_eq!(talk.say(Input::Written { count: 2 }), "c12 2@12 c13 3@13");
    assert!(talk.core.is_idle());
}

#[test]
fn a_part_written_is_answered_and_the_rest_asked_again() {
    let mut talk = Talk::new(0);
    assert_eq!(talk.propose(1, 5), "w1");
    talk.propose(2, 5);
    talk.propose(3, 5);
    talk.propose(4, 5);
    assert_eq!(talk.say(Input::Written { count: 1 }), "c1 1@1 w2,3,4");
    assert_eq!(talk.say(Input::Written { count: 2 }), "c2 2@2 c3 3@3 w4");
    assert_eq!(talk.propose(5, 5), "");
    assert_eq!(talk.say(Input::Written { count: 1 }), "c4 4@4 w5");
}

#[test]
fn a_failed_write_gives_its_indices_again() {
    let mut talk = Talk::new(0);
    talk.propose(1, 5);
    talk.propose(2, 5);
    talk.propose(3, 5);
    assert_eq!(talk.say(Input::WriteFailed { error: Error::Stopped }), "1! w1,2");
    assert_eq!(talk.say(Input::WriteFailed { error: Error::Stopped }), "2! 3!");
    assert_eq!(talk.propose(4, 5), "w1");
}

#[test]
fn limits_are_kept() {
    let mut talk = Talk::new(0);
    assert_eq!(talk.propose(1, 101), "1!");
    assert_eq!(talk.propose(2, 100), "w1", "one larger than a write goes alone");
    talk.propose(3, 30);
    talk.propose(4, 30);
    talk.propose(5, 1);
    assert_eq!(talk.propose(6, 1), "6!", "three wait");
    assert_eq!(talk.say(Input::Written { count: 1 }), "c1 2@1 w2");
    assert_eq!(talk.say(Input::Written { count: 1 }), "c2 3@2 w3,4");
}
