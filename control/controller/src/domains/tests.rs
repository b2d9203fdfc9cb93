use super::*;
use weir_model::domain::{Statement, StatementBody};
use weir_model::signed::{
    BatchHeader, BlsSignature, GroupSignature, ProvenUpdate, SignedHeader, SignedUpdates,
};
use weir_model::{Change, Entry, Key, Update, Version};
use weir_trust::identity::{KeyPair, sign_fetch};

fn label(name: &str) -> Label {
    Label::new(name).unwrap()
}

fn key(id: u64) -> KeyPair {
    KeyPair::from_seed(&[id as u8; 32])
}

fn controllers() -> Vec<DomainController> {
    (1..=4)
        .map(|id| DomainController { id, key: key(id).public(), api: format!("10.0.0.{id}:7443") })
        .collect()
}

fn page(last: u64) -> OutboxPage {
    let header = BatchHeader { domain: label("a"), epoch: 1, index: Version(last), count: 1, root: [0; 32] };
    let signature = GroupSignature::Threshold(BlsSignature([[1; 16]; 3]));
    let statement = Statement { after: last - 1, body: StatementBody::Complete { since: 1 } };
    let update = Update {
        target: label("b"),
        key: Key::Statement { to: label("b"), sequence: last },
        version: Version(last),
        expected: Version::ZERO,
        change: Change::Put(Entry::Statement(Box::new(statement))),
    };
    let updates = vec![ProvenUpdate { leaf: 0, path: Vec::new(), update }];
    OutboxPage {
        statements: vec![SignedUpdates { header: SignedHeader { header, signature }, updates }],
        behind: false,
    }
}

#[test]
fn one_page_is_under_way_and_another_is_asked_for_when_it_is_ordered() {
    let all = controllers();
    let seen = |through| Seen { controllers: &all, through, anew: false };
    let mut asker = Asker::new(label("b"), 1, label("a"));
    let (whom, fetch) = asker.ask(&seen(0), 0).unwrap();
    assert_eq!((whom.id, fetch.through, fetch.begin), (2, 0, false));
    asker.answered(&seen(0), Answer::Page(page(5)), 0);
    assert_eq!(asker.ask(&seen(0), 1), None, "what came is not ordered");
    assert_eq!(asker.due(&seen(0), 1, |_| false), None, "another one's turn");
    assert!(asker.due(&seen(0), 1, |_| true).is_some());
    assert_eq!(asker.due(&seen(0), AGAIN_MS, |_| true), None, "it is under way");
    assert!(asker.due(&seen(0), AGAIN_MS + 1, |_| true).is_some(), "and proposed again");
    assert_eq!(asker.ask(&seen(5), AGAIN_MS + 2), None, "events of one domain have a pause between them");
    assert_eq!(asker.ask(&seen(5), AGAIN_MS + 1 + PAUSE_MS).unwrap().1.through, 5);
    assert_eq!((asker.counters.pages, asker.counters.proposed), (1, 2));
}

#[test]
fn who_is_silent_lies_or_has_nothing_is_passed_over() {
    let all = controllers();
    let seen = Seen { controllers: &all, through: 7, anew: false };
    let mut asker = Asker::new(label("b"), 0, label("a"));
    let (mut asked, mut now_ms) = (Vec::new(), 0);
    for answer in
        [Answer::Silent, Answer::Refused, Answer::Page(page(7)), Answer::Page(OutboxPage::default())]
    {
        asked.push(asker.ask(&seen, now_ms).unwrap().0.id);
        asker.answered(&seen, answer, now_ms);
        assert_eq!(asker.ask(&seen, now_ms), None, "after what brought nothing there is a pause");
        now_ms += BACK_OFF_MAX_MS;
    }
    assert_eq!(asked, [1, 2, 3, 4], "each of them once");
    assert_eq!((asker.counters.silent, asker.counters.refused, asker.counters.pages), (1, 1, 0));
    // A proposal that was refused is let go.
    asker.answered(&seen, Answer::Page(page(8)), now_ms);
    assert_eq!(asker.ask(&seen, now_ms), None);
    asker.lost(now_ms);
    assert!(asker.ask(&seen, now_ms + BACK_OFF_MAX_MS).is_some());
    assert_eq!(asker.counters.lost, 1);
    let nobody = Seen { controllers: &[], through: 0, anew: false };
    assert_eq!(asker.ask(&nobody, 0), None);
}

#[test]
fn pauses_double_and_end_with_what_is_new_or_with_an_answer_that_waited() {
    let all = controllers();
    let seen = Seen { controllers: &all, through: 7, anew: false };
    let mut asker = Asker::new(label("b"), 0, label("a"));
    let mut now_ms = 0;
    let mut pause = |asker: &mut Asker, answer: Answer, takes_ms: u64| {
        assert!(asker.ask(&seen, now_ms).is_some());
        now_ms += takes_ms;
        asker.answered(&seen, answer, now_ms);
        let begun = now_ms;
        while asker.ask(&seen, now_ms).is_none() {
            now_ms += 1;
        }
        now_ms - begun
    };
    let pauses: Vec<u64> = (0..10).map(|_| pause(&mut asker, Answer::Silent, 5)).collect();
    assert_eq!(pauses[..4], [20, 40, 80, 160]);
    assert_eq!(pauses[9], BACK_OFF_MAX_MS);
    let nothing = || Answer::Page(OutboxPage::default());
    assert_eq!(pause(&mut asker, nothing(), 5), BACK_OFF_MAX_MS, "who says at once that it has nothing");
    assert_eq!(pause(&mut asker, nothing(), WAITED_MS), 0, "who waited for something to tell");
    assert_eq!(pause(&mut asker, Answer::Refused, 5), PAUSE_MS);
}

#[test]
fn a_domain_has_taken_what_more_of_its_controllers_say_than_may_lie() {
    let (own, all, now_ms) = (label("a"), controllers(), 1_000_000);
    let word = |id: u64, through: u64, of: &str, at: u64| {
        let fetch =
            Fetch { domain: label("b"), controller: id, of: label(of), through, begin: false, now_ms: at };
        sign_fetch(&key(id), fetch)
    };
    let mut words = Words::default();
    let mut hear = |signed: &SignedFetch| words.hear(&own, Some(&all), signed, now_ms);
    assert_eq!(hear(&word(1, 900, "a", now_ms)), Ok(()));
    assert_eq!(hear(&word(2, 100, "z", now_ms)), Err(Unheard::OtherDomain));
    assert_eq!(hear(&word(2, 100, "a", now_ms + WORD_AGE_MAX_MS + 1)), Err(Unheard::Old));
    let mut forged = word(2, 100, "a", now_ms);
    forged.fetch.through = 900;
    assert_eq!(hear(&forged), Err(Unheard::NoController));
    assert_eq!(hear(&word(9, 100, "a", now_ms)), Err(Unheard::NoController));
    assert_eq!(words.hear(&own, None, &word(2, 1, "a", now_ms), now_ms), Err(Unheard::Unknown));
    assert_eq!(words.unheard, 5);
    assert_eq!(words.due(&label("b"), &all, (0, 1_000, false), now_ms), None, "one of four may lie");
    words.hear(&own, Some(&all), &word(2, 100, "a", now_ms), now_ms).unwrap();
    let (event, _) = words.due(&label("b"), &all, (0, 1_000, false), now_ms).unwrap();
    let DomainEvent::Heard { through, begin, words: said, .. } = event else { panic!("{event:?}") };
    assert_eq!((through, begin, said.len()), (100, false, 2), "the least of what two say");
    // Few are not worth an event at once, and none is made of what is known already.
    assert_eq!(words.due(&label("b"), &all, (90, 1_000, false), now_ms), None);
    assert!(words.due(&label("b"), &all, (90, 1_000, false), now_ms + WORDS_WAIT_MS).is_some());
    assert_eq!(words.due(&label("b"), &all, (100, 1_000, false), now_ms), None);
    assert_eq!(words.due(&label("b"), &all, (0, 50, false), now_ms), None, "more than it was told");
}

#[test]
fn who_has_less_than_it_had_or_more_than_it_was_told_is_behind() {
    let nothing = OutboxPage::default();
    assert!(!is_behind(&nothing, 5, (5, 9)) && !is_behind(&nothing, 9, (5, 9)));
    assert!(is_behind(&nothing, 4, (5, 9)) && is_behind(&nothing, 10, (5, 9)));
    assert!(!is_behind(&page(6), 4, (5, 9)), "what follows is there");
    assert!(is_behind(&OutboxPage { behind: true, ..nothing }, 5, (5, 9)));
}

#[test]
fn a_word_that_somebody_repeats_takes_nothing_back() {
    let (own, all, now_ms) = (label("a"), controllers(), 1_000_000);
    let word = |id: u64, through: u64, at: u64| {
        let (domain, of) = (label("b"), label("a"));
        sign_fetch(&key(id), Fetch { domain, controller: id, of, through, begin: false, now_ms: at })
    };
    let mut words = Words::default();
    let said = [(1, 200, now_ms), (2, 200, now_ms), (1, 100, now_ms - 1_000), (2, 100, now_ms - 1_000)];
    for (id, through, at) in said {
        words.hear(&own, Some(&all), &word(id, through, at), now_ms).unwrap();
    }
    let (event, _) = words.due(&label("b"), &all, (0, 1_000, false), now_ms).unwrap();
    assert!(matches!(event, DomainEvent::Heard { through: 200, .. }), "{event:?}");
    words.keep(|domain| *domain != label("b"));
    assert_eq!(words.due(&label("b"), &all, (0, 1_000, false), now_ms), None);
}

#[test]
fn everything_is_asked_for_anew_when_more_say_that_it_is_gone_than_may_lie() {
    let all = controllers();
    let seen = Seen { controllers: &all, through: 7, anew: false };
    let mut asker = Asker::new(label("b"), 0, label("a"));
    let (gone, nothing) = (OutboxPage { behind: true, ..OutboxPage::default() }, OutboxPage::default());
    let mut now_ms = 0;
    let mut ask = |asker: &mut Asker, page: &OutboxPage| {
        now_ms += BACK_OFF_MAX_MS;
        let (whom, fetch) = asker.ask(&seen, now_ms).unwrap();
        asker.answered(&seen, Answer::Page(page.clone()), now_ms);
        (whom.id, fetch.begin)
    };
    assert_eq!([ask(&mut asker, &gone), ask(&mut asker, &nothing)], [(1, false), (2, false)]);
    assert_eq!(
        [ask(&mut asker, &nothing), ask(&mut asker, &nothing)],
        [(3, false), (4, false)],
        "one may lie"
    );
    assert_eq!([ask(&mut asker, &gone), ask(&mut asker, &gone)], [(1, false), (2, false)]);
    assert_eq!(ask(&mut asker, &nothing), (3, true), "two of four say so");
    assert_eq!(ask(&mut asker, &page(8)), (4, true));
    assert!(asker.due(&seen, 100_000, |_| true).is_some());
    let seen = Seen { controllers: &all, through: 8, anew: false };
    assert!(!asker.ask(&seen, 200_000).unwrap().1.begin, "what was gone is there");
}
