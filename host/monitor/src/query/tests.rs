use super::*;
use crate::kernel::{Event, What};
use crate::summary::{key_of_number, key_of_text};
use weir_sensor::{Kind, SensorBox, Shape, View};

const MS: u64 = 1_000_000;

fn event(time_ns: u64, what: What, process: u32, comm: &str) -> Event {
    Event { time_ns, what, process, user: 3, cgroup: 9, comm: key_of_text(comm) }
}

fn queries(text: &str) -> Queries {
    Queries::new(compile(text).unwrap())
}

fn number(queries: &Queries, at: usize) -> f64 {
    match queries.answer(at).unwrap().value {
        Value::Number(number) => number,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_example_of_the_documentation_is_sound() {
    let example = include_str!("mod.rs");
    let lines = example.lines().skip_while(|line| !line.contains("```text")).skip(1);
    let text: Vec<&str> = lines.take_while(|line| !line.contains("```")).map(|line| &line[4..]).collect();
    let names: Vec<String> = compile(&text.join("\n")).unwrap().into_iter().map(|query| query.name).collect();
    assert_eq!(names, ["processes", "shells", "forkers", "storm", "web"]);
}

#[test]
fn on_demand_queries_follow_the_stream() {
    let mut queries = queries(
        "on-demand all = count(fork) - count(exit); on-demand rate_ = rate(fork, 1s);
         on-demand shells = frequency(exec.comm, \"sh\"); on-demand nc = seen(exec.comm, \"nc\");",
    );
    for n in 0..20 {
        queries.take(&event(n * 10 * MS, What::Fork { parent: 1 }, 100 + n as u32, "a"));
    }
    queries.take(&event(200 * MS, What::Exit { status: 0 }, 100, ""));
    queries.take(&event(200 * MS, What::Exec, 101, "sh"));
    queries.step(500 * MS, 7, |_, _| panic!("on-demand queries do not fire"));
    assert_eq!((number(&queries, 0), number(&queries, 1), number(&queries, 2)), (19.0, 20.0, 1.0));
    assert_eq!(queries.answer(3).unwrap().value, Value::Truth(false));
    queries.take(&event(501 * MS, What::Exec, 102, "nc"));
    queries.step(502 * MS, 7, |_, _| ());
    assert_eq!(queries.answer(3).unwrap().value, Value::Truth(true));
}

#[test]
fn once_fires_once_and_every_fires_each_time() {
    let mut queries = queries(
        "once many when living() > 10 = living() * 2; once bare = living() > 12;
         every 100ms often when not (living() <= 10) = top(2, fork.parent);",
    );
    for parent in [5, 5, 6, 7, 7, 7] {
        queries.take(&event(MS, What::Fork { parent }, 50, "x"));
    }
    let mut fired = Vec::new();
    for (now, living) in [(100, 9), (200, 11), (250, 20), (300, 20), (420, 3)] {
        queries.step(now * MS, living, |at, value| fired.push((now, at, value)));
    }
    assert_eq!(fired[0], (200, 0, Value::Number(22.0)));
    assert_eq!(fired[1].1, 2);
    assert_eq!(fired[2], (250, 1, Value::Truth(true)));
    assert_eq!(fired[3].1, 2);
    assert_eq!(fired.len(), 4);
    let Value::Table { rows, length, text } = fired[1].2 else { panic!("{fired:?}") };
    assert_eq!((length, text), (2, false));
    assert_eq!(rows[..2], [(key_of_number(7), 3), (key_of_number(5), 2)]);
    assert_eq!(fired[1].2.text(), "7 3\n5 2");
    assert_eq!(queries.answer(2).unwrap().fired, 2);
}

#[test]
fn sensors_of_boxes_have_values_and_aggregates() {
    let made = SensorBox::create("web", Shape::default(), MS).unwrap();
    let requests = made.add("requests", Kind::Counter).unwrap();
    let mut queries = queries(
        "on-demand now = value(\"web\", \"requests\"); on-demand mean = average(\"web\", \"requests\", 1s);
         on-demand most_ = most(\"web\", \"requests\", 1s); on-demand grow = slope(\"web\", \"requests\", 1s);
         on-demand none = value(\"web\", \"nothing\") > 1 or value(\"db\", \"x\") != 1;",
    );
    assert_eq!(queries.boxes().collect::<Vec<_>>(), ["web", "db"]);
    queries.attach(0, View::of_process("web", made.memory()).unwrap());
    for n in 0..100 {
        made.count(requests, 5);
        queries.step(2000 * MS + n * 10 * MS, 1, |_, _| ());
    }
    assert_eq!((number(&queries, 0), number(&queries, 2)), (500.0, 500.0));
    assert!((number(&queries, 1) - 252.5).abs() < 10.0 && (number(&queries, 3) - 500.0).abs() < 30.0);
    assert_eq!(queries.answer(4).unwrap().value, Value::Truth(false), "nothing is no reason to fire");
    made.destroy();
    queries.step(3100 * MS, 1, |_, _| ());
    assert!(number(&queries, 0).is_nan());
}

#[test]
fn arithmetic_binds_as_usual() {
    let mut queries = queries(
        "on-demand a = 1 + 2 * 3 - -4 / 2; on-demand b = (1 + 2) * 3; on-demand c = 1 / 0;
         on-demand d = 1 < 2 and 2 < 3 or 1 > 2; on-demand e = 7 == 7 and not (7 != 7);",
    );
    queries.step(MS, 1, |_, _| ());
    assert_eq!((number(&queries, 0), number(&queries, 1)), (9.0, 9.0));
    assert!(number(&queries, 2).is_nan());
    for at in [3, 4] {
        assert_eq!(queries.answer(at).unwrap().value, Value::Truth(true));
    }
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let cases = [
        ("now x = 1;", 0, "begins with 'on-demand'"),
        ("on-demand x = rate(fork);", 14, "rate(STREAM, WINDOW)"),
        ("on-demand x = rate(spoon, 1s);", 19, "no stream"),
        ("on-demand x = rate(fork, 1);", 25, "a window is wanted"),
        ("on-demand x = rate(fork, 2h);", 25, "10ms to 1h"),
        ("on-demand x = 1 + (2 > 1);", 19, "true or false, but a number"),
        ("on-demand x = top(99, fork.parent);", 18, "1 to 16"),
        ("on-demand x = top(5, exit.parent);", 21, "it has process, cgroup"),
        ("on-demand x = seen(exec.comm, 5);", 30, "a text in quotes"),
        ("on-demand x = frobnicate(1);", 14, "there are living"),
        ("on-demand x when 1 > 0 = 1;", 0, "no 'when'"),
        ("once x = 5;", 9, "true or false is wanted"),
        ("every 1ms x = 5;", 6, "10ms to 1h"),
        ("on-demand x = 5", 15, "';' is missing"),
        ("on-demand x = \"a\n\";", 14, "closing quote"),
        ("on-demand x = 5 $;", 16, "'$' has no meaning"),
        ("on-demand x = 5parsecs;", 14, "no unit of time"),
        ("on-demand x = 1; on-demand x = 2;", 17, "two queries named 'x'"),
        ("on-demand x = fork;", 14, "no value by itself"),
    ];
    for (text, at, wanted) in cases {
        match compile(text) {
            Err(Error::Query { at: found, reason }) => {
                assert!(reason.contains(wanted) && found == at, "{text}: {found}: {reason}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    let deep = format!("on-demand x = {}1{};", "(".repeat(100), ")".repeat(100));
    assert!(compile(&deep).unwrap_err().to_string().contains("nested"));
    let minus = format!("on-demand x = {}1;", "- ".repeat(10_000));
    assert!(compile(&minus).unwrap_err().to_string().contains("nested"));
    let long = format!("on-demand x = 1{};", " + 1".repeat(PARTS_MAX));
    assert!(compile(&long).unwrap_err().to_string().contains("parts"));
    let table =
        "on-demand x = frequency(fork.user, 1)".to_string() + &" + frequency(fork.user, 1)".repeat(60) + ";";
    let many: String = (0..4).map(|n| table.replace(" x ", &format!(" x{n} "))).collect();
    assert!(compile(&many).unwrap_err().to_string().contains("bytes"), "too much memory");
}

#[test]
fn an_error_in_a_file_has_line_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("q");
    std::fs::write(&file, "# a comment\non-demand x = 1;\n  on-demand y = rate(fork);\n").unwrap();
    let error = load(&file).unwrap_err().to_string();
    assert!(error.contains("line 3, column 17"), "{error}");
}

#[test]
fn any_text_is_refused_or_evaluated_without_harm() {
    const WORDS: [&str; 32] = [
        "on-demand",
        "once",
        "every",
        "when",
        "x",
        "=",
        ";",
        "(",
        ")",
        ",",
        ".",
        "+",
        "-",
        "*",
        "/",
        "<",
        ">=",
        "!=",
        "and",
        "or",
        "not",
        "1",
        "100ms",
        "\"a\"",
        "rate",
        "count",
        "top",
        "seen",
        "fork",
        "comm",
        "living",
        "#\n",
    ];
    let run = |text: &str| {
        let Ok(checked) = compile(text) else { return };
        let mut queries = Queries::new(checked);
        for n in 0..3 {
            queries.take(&event(n, What::Fork { parent: 1 }, 2, "a"));
            queries.step(n, n, |_, value| drop(value.text()));
        }
    };
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Ok(text) = std::str::from_utf8(bytes) {
            run(text);
        }
        let words: Vec<&str> = bytes.iter().map(|byte| WORDS[*byte as usize % WORDS.len()]).collect();
        run(&words.join(" "));
        run(&format!("on-demand x = {};", words.join(" ")));
    });
}

#[test]
fn the_order_of_locks_is_asked_of_a_box() {
    let text = "on-demand may = cycles(\"app\", \"locks\"); once now = deadlocked(\"app\", \"locks\") > 0;";
    let mut queries = Queries::new(compile(text).unwrap());
    let made = weir_sensor::SensorBox::create("app", weir_sensor::Shape::default(), 1_000_000).unwrap();
    let locks = made.add("locks", weir_sensor::Kind::Event).unwrap();
    let view = weir_sensor::View::of_process("app", made.memory()).unwrap();
    queries.attach(0, view);
    let tell = |thread: u64, lock: u64, operation: u64| {
        let bytes: Vec<u8> = [thread, lock, operation].into_iter().flat_map(u64::to_ne_bytes).collect();
        made.record(locks, &bytes);
    };
    queries.step(1, 0, |_, _| panic!("nothing yet"));
    for (thread, lock, operation) in [(1, 10, 2), (2, 20, 2), (1, 20, 1)] {
        tell(thread, lock, operation);
    }
    queries.step(2, 0, |_, _| panic!("only an order"));
    assert_eq!(queries.answer(0).unwrap().value, Value::Number(0.0));
    tell(2, 10, 1);
    let mut fired = Vec::new();
    queries.step(3, 0, |query, value| fired.push((query, value)));
    assert_eq!(fired, [(1, Value::Truth(true))]);
    assert_eq!(queries.answer(0).unwrap().value, Value::Number(1.0));
    let error = compile("on-demand a = cycles(\"app\");").unwrap_err().to_string();
    assert!(error.contains("cycles(\"BOX\", \"SENSOR\")"), "{error}");
}
