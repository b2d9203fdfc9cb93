use super::*;

pub(crate) fn alarm(outcome: &str) -> Entry {
    let culprit = Process { process: 7, program: "bomb".into(), user: 5, alive: false };
    let alarm = Alarm {
        measure: "living".into(),
        found: 90,
        limit: 64,
        action: "freeze-kill".into(),
        dry_run: outcome == "reported",
        outcome: outcome.into(),
        culprit: Some(culprit),
        parent: None,
        weight: 90,
        members: 92,
        spared: 2,
        signalled: 90,
        processes: vec![8, 9],
        time_ns: 5,
        age_us: 9000,
        frozen: true,
        freeze_us: 150,
        act_us: 900,
    };
    Entry {
        number: 3,
        unix_ms: 1_700_000_000_123,
        policy: Some("web".into()),
        what: What::Alarm(Box::new(alarm)),
    }
}

fn entry(number: u64, policy: &str, what: What) -> Entry {
    Entry { number, unix_ms: 1, policy: Some(policy.into()), what }
}

#[test]
fn an_alarm_is_told_from_what_was_seen_to_what_came_of_it() {
    let settled = entry(5, "web", What::Settled { took_us: 8000, again: 1 });
    let other = entry(4, "other", What::Unsettled { left: 1 });
    let told = text(&alarm("acted"), &[&other, &settled]);
    assert_eq!(
        told,
        "event 3 at 2023-11-14T22:13:20.123Z, policy web
seen:    90 living processes were born within the window; the policy allows fewer than 64
behind:  process 7 (bomb, user 5, which had ended), forked by nobody
         its tree: 92 living processes, weight 90, the oldest born 9000 us before the alarm
spared:  2 of them are protected or outside the policy's cgroup
done:    freeze-kill: frozen after 150 us, 90 processes signalled, done after 900 us
         processes 8 9 …
then:    gone 8000 us after the alarm, 1 of it signalled again (event 5)"
    );
}

#[test]
fn a_dry_run_says_what_it_would_have_done() {
    let told = text(&alarm("reported"), &[]);
    assert!(
        told.contains("nothing: a dry run. In earnest, freeze-kill would have hit 90 processes"),
        "{told}"
    );
    assert!(line(&alarm("nobody-to-blame")).contains("protected"));
}
