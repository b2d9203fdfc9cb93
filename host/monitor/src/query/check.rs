//! From statements to checked code: types, names, windows, memory.

use super::parse::{Binary, Expression, Part, Statement, Unary};
use super::{Query, WINDOW_NS, When};
use crate::error::{Error, Result};
use crate::kernel::{Event, What};
use crate::summary::{
    Bloom, CountMin, Counts, Heaviest, Key, LockOrder, Samples, TOP_MAX, key_of_number, key_of_text,
};

/// A stream of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Fork,
    Exec,
    Exit,
    Victim,
}

impl Stream {
    pub(super) fn of(event: &Event) -> Stream {
        match event.what {
            What::Fork { .. } => Stream::Fork,
            What::Exec => Stream::Exec,
            What::Exit { .. } => Stream::Exit,
            What::Victim => Stream::Victim,
        }
    }
}

/// A field of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Process,
    Parent,
    User,
    Cgroup,
    Comm,
}

impl Field {
    pub(super) fn key(self, event: &Event) -> Key {
        match (self, event.what) {
            (Field::Process, _) => key_of_number(event.process.into()),
            (Field::Parent, What::Fork { parent }) => key_of_number(parent.into()),
            (Field::Parent, _) => key_of_number(0),
            (Field::User, _) => key_of_number(event.user.into()),
            (Field::Cgroup, _) => key_of_number(event.cgroup),
            (Field::Comm, _) => {
                let mut key = event.comm;
                key[15] = 0;
                key
            }
        }
    }
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Number,
    Truth,
    Table,
}

impl Type {
    fn name(self) -> &'static str {
        match self {
            Type::Number => "a number",
            Type::Truth => "true or false",
            Type::Table => "a table",
        }
    }
}

/// What a box's sensor is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Value,
    Average,
    Least,
    Most,
    Slope,
}

/// Code with the summaries that it reads. Parts come before what uses them; the last is the whole.
#[derive(Clone, Debug)]
pub(super) struct Code {
    pub steps: Vec<Step>,
}

/// A step of evaluation.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Number(f64),
    Living,
    Count { stream: Stream, seen: u64 },
    Rate { stream: Stream, counts: Box<Counts> },
    Seen { stream: Stream, field: Field, key: Key, filter: Box<Bloom> },
    Frequency { stream: Stream, field: Field, key: Key, counts: Box<CountMin> },
    Top { stream: Stream, field: Field, rows: usize, heaviest: Box<Heaviest> },
    Locks { now: bool, sensor_box: String, sensor: String, slot: Option<u32>, order: Box<LockOrder> },
    Sensor { of: Of, sensor_box: String, sensor: String, samples: Box<Samples>, last: Option<u64> },
    Not(usize),
    Minus(usize),
    Binary(Binary, usize, usize),
}

impl Step {
    fn bytes(&self) -> usize {
        let own = match self {
            Step::Rate { .. } => size_of::<Counts>(),
            Step::Seen { .. } => Bloom::BYTES,
            Step::Frequency { .. } => CountMin::BYTES,
            Step::Top { .. } => Heaviest::BYTES,
            Step::Sensor { .. } => size_of::<Samples>(),
            Step::Locks { .. } => LockOrder::BYTES,
            _ => 0,
        };
        own + size_of::<Step>()
    }
}

impl Code {
    pub(super) fn bytes(&self) -> usize {
        self.steps.iter().map(Step::bytes).sum()
    }

    pub(super) fn sensors(&self) -> impl Iterator<Item = (&str, &str)> {
        self.steps.iter().filter_map(|step| match step {
            Step::Sensor { sensor_box, sensor, .. } | Step::Locks { sensor_box, sensor, .. } => {
                Some((sensor_box.as_str(), sensor.as_str()))
            }
            _ => None,
        })
    }
}

/// Checks a statement.
pub(super) fn check(statement: &Statement) -> Result<Query> {
    let (value, kind) = code(&statement.value)?;
    let condition = match &statement.condition {
        None => None,
        Some(expression) => {
            let (code, kind) = code(expression)?;
            expect(expression, kind, Type::Truth)?;
            Some(code)
        }
    };
    match statement.when {
        When::OnDemand if condition.is_some() => {
            let reason = "an on-demand query has no 'when': it is evaluated when it is asked for";
            return Err(Error::Query { at: statement.at, reason: reason.into() });
        }
        When::Once if condition.is_none() => expect(&statement.value, kind, Type::Truth)?,
        _ => {}
    }
    Ok(Query { name: statement.name.clone(), when: statement.when, condition, value })
}

fn code(expression: &Expression) -> Result<(Code, Type)> {
    let mut code = Code { steps: Vec::new() };
    let (_, kind) = compile(expression, &mut code)?;
    Ok((code, kind))
}

fn wrong(expression: &Expression, reason: impl Into<String>) -> Error {
    Error::Query { at: expression.at, reason: reason.into() }
}

fn expect(expression: &Expression, found: Type, wanted: Type) -> Result<()> {
    if found == wanted {
        Ok(())
    } else {
        Err(wrong(expression, format!("this is {}, but {} is wanted here", found.name(), wanted.name())))
    }
}

fn put(code: &mut Code, step: Step, kind: Type) -> (usize, Type) {
    code.steps.push(step);
    (code.steps.len() - 1, kind)
}

fn compile(expression: &Expression, code: &mut Code) -> Result<(usize, Type)> {
    match &expression.part {
        Part::Number(number) => Ok(put(code, Step::Number(*number), Type::Number)),
        Part::Duration(_) => Err(wrong(expression, "a time stands only where a window is wanted")),
        Part::Text(_) => {
            Err(wrong(expression, "a text stands only where a key or the name of a sensor is wanted"))
        }
        Part::Name(name, _) => Err(wrong(
            expression,
            format!("'{name}' is no value by itself: give it to a function, such as rate"),
        )),
        Part::Call(name, given) => call(expression, name, given, code),
        Part::Unary(operator, inner) => {
            let (at, kind) = compile(inner, code)?;
            match operator {
                Unary::Not => {
                    expect(inner, kind, Type::Truth)?;
                    Ok(put(code, Step::Not(at), Type::Truth))
                }
                Unary::Minus => {
                    expect(inner, kind, Type::Number)?;
                    Ok(put(code, Step::Minus(at), Type::Number))
                }
            }
        }
        Part::Binary(operator, left, right) => {
            let (first, first_kind) = compile(left, code)?;
            let (second, second_kind) = compile(right, code)?;
            let (takes, gives) = match operator {
                Binary::Or | Binary::And => (Type::Truth, Type::Truth),
                Binary::Plus | Binary::Minus | Binary::Times | Binary::By => (Type::Number, Type::Number),
                _ => (Type::Number, Type::Truth),
            };
            expect(left, first_kind, takes)?;
            expect(right, second_kind, takes)?;
            Ok(put(code, Step::Binary(*operator, first, second), gives))
        }
    }
}

fn call(expression: &Expression, name: &str, given: &[Expression], code: &mut Code) -> Result<(usize, Type)> {
    let usage = |usage: &str| wrong(expression, format!("it is used as {usage}"));
    let made = match (name, given) {
        ("living", []) => (Step::Living, Type::Number),
        ("living", _) => return Err(usage("living()")),
        ("count", [of]) => (Step::Count { stream: stream(of)?, seen: 0 }, Type::Number),
        ("count", _) => return Err(usage("count(STREAM)")),
        ("rate", [of, over]) => {
            (Step::Rate { stream: stream(of)?, counts: Box::new(Counts::new(window(over)?)) }, Type::Number)
        }
        ("rate", _) => return Err(usage("rate(STREAM, WINDOW), such as rate(fork, 1s)")),
        ("seen", [of, key]) => {
            let (stream, field) = stream_and_field(of)?;
            let key = literal(field, key)?;
            (Step::Seen { stream, field, key, filter: Box::default() }, Type::Truth)
        }
        ("seen", _) => return Err(usage("seen(STREAM.FIELD, VALUE), such as seen(exec.comm, \"nc\")")),
        ("frequency", [of, key]) => {
            let (stream, field) = stream_and_field(of)?;
            let key = literal(field, key)?;
            (Step::Frequency { stream, field, key, counts: Box::default() }, Type::Number)
        }
        ("frequency", _) => return Err(usage("frequency(STREAM.FIELD, VALUE)")),
        ("top", [rows, of]) => {
            let (stream, field) = stream_and_field(of)?;
            let rows = match rows.part {
                Part::Number(number) if number.fract() == 0.0 && (1.0..=TOP_MAX as f64).contains(&number) => {
                    number as usize
                }
                _ => return Err(wrong(rows, format!("a whole number from 1 to {TOP_MAX} is wanted here"))),
            };
            (Step::Top { stream, field, rows, heaviest: Box::default() }, Type::Table)
        }
        ("top", _) => return Err(usage("top(ROWS, STREAM.FIELD), such as top(5, fork.parent)")),
        ("value", [sensor_box, sensor]) => (sensor_step(Of::Value, sensor_box, sensor, None)?, Type::Number),
        ("value", _) => return Err(usage("value(\"BOX\", \"SENSOR\")")),
        ("cycles" | "deadlocked", [sensor_box, sensor]) => {
            let (sensor_box, sensor) = (text(sensor_box)?, text(sensor)?);
            let order = Box::default();
            (Step::Locks { now: name == "deadlocked", sensor_box, sensor, slot: None, order }, Type::Number)
        }
        ("cycles" | "deadlocked", _) => return Err(usage(&format!("{name}(\"BOX\", \"SENSOR\")"))),
        ("average" | "least" | "most" | "slope", [sensor_box, sensor, over]) => {
            let of = match name {
                "average" => Of::Average,
                "least" => Of::Least,
                "most" => Of::Most,
                _ => Of::Slope,
            };
            (sensor_step(of, sensor_box, sensor, Some(over))?, Type::Number)
        }
        ("average" | "least" | "most" | "slope", _) => {
            return Err(usage(&format!("{name}(\"BOX\", \"SENSOR\", WINDOW)")));
        }
        _ => {
            let known = "living, count, rate, seen, frequency, top, value, average, least, most, slope, \
                         cycles, deadlocked";
            return Err(wrong(expression, format!("'{name}' is no function: there are {known}")));
        }
    };
    Ok(put(code, made.0, made.1))
}

fn text(expression: &Expression) -> Result<String> {
    match &expression.part {
        Part::Text(text) => Ok(text.clone()),
        _ => Err(wrong(expression, "a name in quotes is wanted here")),
    }
}

fn sensor_step(
    of: Of,
    sensor_box: &Expression,
    sensor: &Expression,
    over: Option<&Expression>,
) -> Result<Step> {
    let window_ns = over.map_or(Ok(*WINDOW_NS.start()), window)?;
    Ok(Step::Sensor {
        of,
        sensor_box: text(sensor_box)?,
        sensor: text(sensor)?,
        samples: Box::new(Samples::new(window_ns)),
        last: None,
    })
}

fn window(expression: &Expression) -> Result<u64> {
    match expression.part {
        Part::Duration(duration_ns) if WINDOW_NS.contains(&duration_ns) => Ok(duration_ns),
        Part::Duration(_) => Err(wrong(expression, "a window is from 10ms to 1h long")),
        _ => Err(wrong(expression, "a window is wanted here, such as 500ms or 10s")),
    }
}

fn stream_named(expression: &Expression, name: &str) -> Result<Stream> {
    match name {
        "fork" => Ok(Stream::Fork),
        "exec" => Ok(Stream::Exec),
        "exit" => Ok(Stream::Exit),
        "victim" => Ok(Stream::Victim),
        _ => Err(wrong(expression, format!("'{name}' is no stream: there are fork, exec, exit, victim"))),
    }
}

fn stream(expression: &Expression) -> Result<Stream> {
    match &expression.part {
        Part::Name(name, None) => stream_named(expression, name),
        _ => Err(wrong(expression, "a stream is wanted here: fork, exec, exit or victim")),
    }
}

fn stream_and_field(expression: &Expression) -> Result<(Stream, Field)> {
    let Part::Name(name, Some(field)) = &expression.part else {
        return Err(wrong(expression, "a field of a stream is wanted here, such as fork.parent"));
    };
    let stream = stream_named(expression, name)?;
    let field = match (field.as_str(), stream) {
        ("process", _) => Field::Process,
        ("parent", Stream::Fork) => Field::Parent,
        ("user", Stream::Fork | Stream::Exec) => Field::User,
        ("cgroup", Stream::Fork | Stream::Exec | Stream::Exit) => Field::Cgroup,
        ("comm", Stream::Fork | Stream::Exec) => Field::Comm,
        _ => {
            let known = match stream {
                Stream::Fork => "process, parent, user, cgroup, comm",
                Stream::Exec => "process, user, cgroup, comm",
                Stream::Exit => "process, cgroup",
                Stream::Victim => "process",
            };
            return Err(wrong(expression, format!("'{name}' has no field '{field}': it has {known}")));
        }
    };
    Ok((stream, field))
}

fn literal(field: Field, expression: &Expression) -> Result<Key> {
    match (&expression.part, field) {
        (Part::Text(text), Field::Comm) => Ok(key_of_text(text)),
        (Part::Number(number), Field::Process | Field::Parent | Field::User | Field::Cgroup)
            if number.fract() == 0.0 && *number >= 0.0 =>
        {
            Ok(key_of_number(*number as u64))
        }
        (_, Field::Comm) => Err(wrong(expression, "a text in quotes is wanted here")),
        _ => Err(wrong(expression, "a whole number is wanted here")),
    }
}

impl Field {
    /// Whether keys of it are texts.
    pub(super) fn is_text(self) -> bool {
        self == Field::Comm
    }
}
