//! Words in the order: bounds, and what a row remembers.

use super::*;

fn row(words: &[(u64, GroupWord)]) -> Row {
    let mut row = Row::default();
    for (now_ms, word) in words {
        take(&mut row, word, *now_ms).unwrap();
    }
    row
}

fn suspects(member: u64) -> GroupWord {
    GroupWord::Suspects { member, after_ms: 60_000 }
}

#[test]
fn a_suspicion_goes_on_as_it_began_until_it_is_taken_back_or_forgotten() {
    let going = row(&[(1_000, suspects(4)), (50_000, suspects(4))]);
    assert_eq!(going.suspects[&4], Suspicion { since_ms: 1_000, said_ms: 50_000, after_ms: 60_000 });
    let anew = row(&[(1_000, suspects(4)), (1_001 + SUSPICION_LIFE_MS, suspects(4))]);
    assert_eq!(anew.suspects[&4].since_ms, 1_001 + SUSPICION_LIFE_MS, "it was over, and begins anew");
    let taken_back =
        row(&[(1_000, suspects(4)), (2_000, GroupWord::Trusts { member: 4 }), (3_000, suspects(4))]);
    assert_eq!(taken_back.suspects[&4].since_ms, 3_000);
}

#[test]
fn rows_are_bounded_whatever_a_controller_says() {
    let mut one = Row::default();
    let spare = |id| GroupWord::Spare { id, key: None, address: "a".into() };
    let convicts = |member| GroupWord::Convicts { member, key: [1; 32], proof: vec![7; 100] };
    for id in 0..1_000 {
        let replaced = Replaced { out: id, by: None, number: id, because: Because::Lied, who: Vec::new() };
        for word in [
            suspects(id),
            spare(id),
            convicts(id),
            GroupWord::Replaced(replaced),
            GroupWord::NoSpare { id: 5_000 + id },
        ] {
            let _refused = take(&mut one, &word, 1_000 + id);
        }
    }
    let Row { suspects, convicts, spares, replaced, .. } = &one;
    assert_eq!((suspects.len(), convicts.len(), replaced.len()), (SUBJECTS_MAX, CONVICTS_MAX, REPLACED_MAX));
    assert!(spares.len() <= SUBJECTS_MAX && spares.values().flatten().count() == SPARES_MAX);
    assert!(encode(&one).len() < 8 << 10);
}

#[test]
fn what_liars_say_was_done_moves_no_hour() {
    let source = |id: u64| SourceId(format!("controller/controller-{id}"));
    let members = (1..=4).map(|id| (id, Member { source: source(id), keys: BTreeSet::new() })).collect();
    let roster = Roster { members, decide: 3, believed: 2, least: 4 };
    let done = Replaced { out: 9, by: Some(4), number: 2, because: Because::Silent, who: vec![1, 2, 3] };
    let mut words = Words::default();
    words.hear(&source(3), &GroupWord::Replaced(done.clone()), 5_000).unwrap();
    assert_eq!(words.rests_until_ms(&roster, &source(1)), 0, "one says so");
    assert_eq!(words.rests_until_ms(&roster, &source(3)), 5_000 + REPLACE_EACH_MS, "but it believes itself");
    words.hear(&source(1), &GroupWord::Replaced(done.clone()), 6_000).unwrap();
    words.hear(&source(2), &GroupWord::Replaced(done.clone()), 7_000).unwrap();
    // The fourth says it late: it is the second word that counts.
    words.hear(&source(4), &GroupWord::Replaced(done.clone()), 3_000_000).unwrap();
    assert_eq!(words.replaced(&roster, &source(1)), [(6_000, done.clone())]);
    assert_eq!(words.to_repeat(&roster, &source(1)), []);
    words.rows.remove(&source(4));
    assert_eq!(words.to_repeat(&roster, &source(4)), [done]);
}
