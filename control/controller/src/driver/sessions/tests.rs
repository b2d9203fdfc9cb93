//! Tests of the list of controllers that sessions are told.

use super::*;

fn list(numbers: &[u8]) -> Vec<String> {
    numbers.iter().map(|number| format!("192.0.2.{number}:7444")).collect()
}

/// A session that has had its first frame.
fn opened(sessions: &Sessions) -> mpsc::Receiver<ToActuator> {
    let name = Label::new("h1").unwrap();
    let shown = Certified { key: [1; 32], until_s: 1, owner: None };
    let (_, mut queue) = sessions.open(&name, ("test".into(), 1, shown), ToActuator::SendState);
    assert_eq!(queue.try_recv().unwrap(), ToActuator::SendState);
    queue
}

#[test]
fn the_founders_are_known_before_the_first_change_of_members() {
    let sessions = Sessions::new(SessionSettings::default());
    let mut early = opened(&sessions);
    // One that waits to be added knows of nobody at first.
    sessions.set_controllers(0, vec![]);
    assert!(sessions.known_controllers().is_empty());
    sessions.set_controllers(0, list(&[1, 2, 3]));
    assert_eq!(sessions.known_controllers(), list(&[1, 2, 3]));
    // Every actuator has that list since it joined.
    assert!(early.try_recv().is_err() && opened(&sessions).try_recv().is_err());
}

#[test]
fn of_two_lists_of_controllers_the_one_with_the_higher_number_counts() {
    let sessions = Sessions::new(SessionSettings::default());
    sessions.set_controllers(0, list(&[1, 2, 3]));
    let mut queue = opened(&sessions);
    sessions.set_controllers(4, list(&[1, 2, 3, 4]));
    let told = ToActuator::Controllers { number: 4, sessions: list(&[1, 2, 3, 4]) };
    assert_eq!(queue.try_recv().unwrap(), told);
    for (number, sooner) in
        [(0, list(&[1, 2, 3])), (3, list(&[1, 2])), (4, list(&[2])), (9, list(&[1, 2, 3, 4]))]
    {
        sessions.set_controllers(number, sooner);
        assert_eq!(sessions.known_controllers(), list(&[1, 2, 3, 4]), "{number}");
        assert!(queue.try_recv().is_err(), "nothing new is told: {number}");
    }
    // Who was told that nobody is there with a number above, as one that begins without a state, takes the first list that it hears.
    let sessions = Sessions::new(SessionSettings::default());
    sessions.set_controllers(5, vec![]);
    sessions.set_controllers(3, list(&[1]));
    assert_eq!(sessions.known_controllers(), list(&[1]));
}
