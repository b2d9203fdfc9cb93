//! Evaluates queries: one update for each event and sensor, one pass over the steps when a value is wanted.

use super::check::{Code, Of, Step, Stream};
use super::parse::Binary;
use super::{PARTS_MAX, Query, When};
use crate::kernel::{Event, comm_text};
use crate::summary::{Key, TOP_MAX};
use weir_sensor::View;

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A number; not a number where there is nothing to tell, such as an average without samples.
    Number(f64),
    /// True or false.
    Truth(bool),
    /// Keys and how often each was seen, the most frequent first.
    Table {
        /// The rows.
        rows: [(Key, u32); TOP_MAX],
        /// How many of them count.
        length: usize,
        /// Whether the keys are texts.
        text: bool,
    },
}

impl Value {
    fn number(self) -> f64 {
        match self {
            Value::Number(number) => number,
            Value::Truth(_) | Value::Table { .. } => f64::NAN,
        }
    }

    fn truth(self) -> bool {
        self == Value::Truth(true)
    }

    /// As text: a table has a row a line.
    pub fn text(&self) -> String {
        match self {
            Value::Number(number) if number.fract() == 0.0 && number.abs() < 1e15 => format!("{number:.0}"),
            Value::Number(number) => format!("{number:.3}"),
            Value::Truth(truth) => truth.to_string(),
            Value::Table { rows, length, text } => {
                let row = |(key, count): &(Key, u32)| match text {
                    true => format!("{} {count}", comm_text(key)),
                    false => {
                        format!("{} {count}", u64::from_le_bytes(key[..8].try_into().unwrap_or_default()))
                    }
                };
                rows[..*length].iter().map(row).collect::<Vec<_>>().join("\n")
            }
        }
    }
}

/// What a query has to say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// Its value at the last evaluation.
    pub value: Value,
    /// How often it fired.
    pub fired: u64,
}

/// Queries in force.
#[derive(Debug, Default)]
pub struct Queries {
    rows: Vec<Row>,
    boxes: Vec<(String, Option<View>)>,
    /// What the last step was given: the time, ns, and the number of living processes.
    stepped: Option<(u64, u64)>,
}

#[derive(Debug)]
struct Row {
    query: Query,
    due_ns: u64,
    answer: Answer,
}

impl Queries {
    /// Takes checked queries.
    pub fn new(queries: Vec<Query>) -> Queries {
        let mut boxes: Vec<(String, Option<View>)> = Vec::new();
        for (name, _) in queries.iter().flat_map(Query::sensors) {
            if !boxes.iter().any(|(other, _)| other == name) {
                boxes.push((name.to_string(), None));
            }
        }
        let answer = Answer { value: Value::Number(f64::NAN), fired: 0 };
        let rows = queries.into_iter().map(|query| Row { query, due_ns: 0, answer }).collect();
        Queries { rows, boxes, stepped: None }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The answer of a query: of one that is on demand as of the last step, of others as of their last evaluation.
    pub fn answer(&self, query: usize) -> Option<Answer> {
        let row = self.rows.get(query)?;
        match self.stepped.filter(|_| row.query.when == When::OnDemand) {
            Some((now_ns, living)) => {
                Some(Answer { value: row.query.value.evaluate(now_ns, living), ..row.answer })
            }
            None => Some(row.answer),
        }
    }

    /// The boxes that are read, in the order that [`Queries::attach`] counts them.
    pub fn boxes(&self) -> impl Iterator<Item = &str> {
        self.boxes.iter().map(|(name, _)| name.as_str())
    }

    /// Gives it a box to read. Returns the one that was there.
    pub fn attach(&mut self, at: usize, view: View) -> Option<View> {
        self.boxes.get_mut(at)?.1.replace(view)
    }

    fn codes(&mut self) -> impl Iterator<Item = &mut Code> {
        self.rows.iter_mut().flat_map(|row| row.query.condition.iter_mut().chain([&mut row.query.value]))
    }

    /// Takes an event.
    pub fn take(&mut self, event: &Event) {
        let stream = Stream::of(event);
        for step in self.codes().flat_map(|code| &mut code.steps) {
            step.take(stream, event);
        }
    }

    /// Reads the boxes.
    fn sample(&mut self, now_ns: u64) {
        let mut boxes = std::mem::take(&mut self.boxes);
        for (name, view) in &mut boxes {
            if let Some(view) = view {
                self.follow_locks(name, view);
            }
        }
        for step in self.codes().flat_map(|code| &mut code.steps) {
            let Step::Sensor { sensor_box, sensor, samples, last, .. } = step else { continue };
            let view = boxes.iter().find(|(name, _)| name == sensor_box).and_then(|(_, view)| view.as_ref());
            *last = view.filter(|view| !view.closed()).and_then(|view| view.value_of(sensor));
            if let Some(value) = *last {
                samples.add(now_ns, value);
            }
        }
        self.boxes = boxes;
    }

    /// Takes the events of a box's locks; each is fetched once, for all who ask.
    fn follow_locks(&mut self, name: &str, view: &mut View) {
        let wants = |step: &Step| matches!(step, Step::Locks { sensor_box, .. } if sensor_box == name);
        if !self.codes().any(|code| code.steps.iter().any(wants)) {
            return;
        }
        let found = view.fetch(|record| {
            for step in self.codes().flat_map(|code| &mut code.steps) {
                if let Step::Locks { sensor_box, slot: Some(slot), order, .. } = step
                    && sensor_box == name
                    && *slot == record.sensor
                {
                    order.take(record.words[0], record.words[1], record.words[2]);
                }
            }
        });
        for step in self.codes().flat_map(|code| &mut code.steps) {
            if let Step::Locks { sensor_box, sensor, slot, order, .. } = step
                && sensor_box == name
            {
                *slot = view.find(sensor);
                if found.lost + found.lies > 0 {
                    order.forget_holders();
                }
            }
        }
    }

    /// One period: samples, evaluates what is due, and calls `fired` for what fires. `living` is the number of living
    /// processes. What is on demand is evaluated only by [`Queries::answer`].
    pub fn step(&mut self, now_ns: u64, living: u64, mut fired: impl FnMut(usize, Value)) {
        self.sample(now_ns);
        self.stepped = Some((now_ns, living));
        for (at, row) in self.rows.iter_mut().enumerate() {
            if now_ns < row.due_ns || row.query.when == When::OnDemand {
                continue;
            }
            let holds = |code: &Code| code.evaluate(now_ns, living).truth();
            let condition = row.query.condition.as_ref().map(holds);
            let value = row.query.value.evaluate(now_ns, living);
            let fires = match row.query.when {
                When::OnDemand => false,
                When::Once => condition.unwrap_or(value.truth()),
                When::Every(_) => condition.unwrap_or(false),
            };
            row.answer.value = value;
            row.due_ns = match row.query.when {
                When::OnDemand => u64::MAX,
                // It has said what it has to say.
                When::Once => {
                    if fires {
                        u64::MAX
                    } else {
                        0
                    }
                }
                When::Every(period_ns) => now_ns.saturating_add(period_ns),
            };
            if fires {
                row.answer.fired += 1;
                fired(at, value);
            }
        }
    }
}

impl Step {
    fn take(&mut self, of: Stream, event: &Event) {
        match self {
            Step::Count { stream, seen } if *stream == of => *seen += 1,
            Step::Rate { stream, counts } if *stream == of => counts.add(event.time_ns),
            Step::Seen { stream, field, filter, .. } if *stream == of => filter.add(&field.key(event)),
            Step::Frequency { stream, field, counts, .. } if *stream == of => {
                counts.add(&field.key(event));
            }
            Step::Top { stream, field, heaviest, .. } if *stream == of => heaviest.add(&field.key(event)),
            _ => {}
        }
    }
}

impl Code {
    fn evaluate(&self, now_ns: u64, living: u64) -> Value {
        let mut numbers = [f64::NAN; PARTS_MAX];
        let mut whole = Value::Number(f64::NAN);
        let truth = |number: f64| number == 1.0;
        for (at, step) in self.steps.iter().enumerate() {
            // Inside an expression truth is 1 or 0; types were checked, so no number is taken for it.
            whole = match step {
                Step::Not(inner) => Value::Truth(!truth(numbers[*inner])),
                Step::Minus(inner) => Value::Number(-numbers[*inner]),
                Step::Binary(operator, left, right) => binary(*operator, numbers[*left], numbers[*right]),
                other => other.read(now_ns, living),
            };
            numbers[at] = match whole {
                Value::Truth(truth) => f64::from(u8::from(truth)),
                other => other.number(),
            };
        }
        whole
    }
}

fn binary(operator: Binary, left: f64, right: f64) -> Value {
    match operator {
        Binary::Or => Value::Truth(left == 1.0 || right == 1.0),
        Binary::And => Value::Truth(left == 1.0 && right == 1.0),
        Binary::Less => Value::Truth(left < right),
        Binary::LessOrEqual => Value::Truth(left <= right),
        Binary::More => Value::Truth(left > right),
        Binary::MoreOrEqual => Value::Truth(left >= right),
        Binary::Equal => Value::Truth(left == right),
        // Nothing is not equal to nothing, but it is no reason to fire either.
        Binary::NotEqual => Value::Truth(left != right && !left.is_nan() && !right.is_nan()),
        Binary::Plus => Value::Number(left + right),
        Binary::Minus => Value::Number(left - right),
        Binary::Times => Value::Number(left * right),
        Binary::By => Value::Number(if right == 0.0 { f64::NAN } else { left / right }),
    }
}

impl Step {
    fn read(&self, now_ns: u64, living: u64) -> Value {
        let known = |value: Option<u64>| Value::Number(value.map_or(f64::NAN, |value| value as f64));
        match self {
            Step::Number(number) => Value::Number(*number),
            Step::Living => Value::Number(living as f64),
            Step::Count { seen, .. } => Value::Number(*seen as f64),
            Step::Rate { counts, .. } => Value::Number(counts.rate(now_ns)),
            Step::Seen { key, filter, .. } => Value::Truth(filter.seen(key)),
            Step::Frequency { key, counts, .. } => Value::Number(counts.frequency(key).into()),
            Step::Top { field, rows, heaviest, .. } => {
                let mut table = [([0; 16], 0); TOP_MAX];
                let mut length = 0;
                for (to, row) in table.iter_mut().zip(heaviest.rows()).take(*rows) {
                    *to = row;
                    length += 1;
                }
                Value::Table { rows: table, length, text: field.is_text() }
            }
            Step::Locks { now: false, order, .. } => Value::Number(order.cycles() as f64),
            Step::Locks { now: true, order, .. } => Value::Number(order.deadlocked() as f64),
            Step::Sensor { of, samples, last, .. } => match of {
                Of::Value => known(*last),
                Of::Average => Value::Number(samples.average(now_ns).unwrap_or(f64::NAN)),
                Of::Least => known(samples.least(now_ns)),
                Of::Most => known(samples.most(now_ns)),
                Of::Slope => Value::Number(samples.slope(now_ns).unwrap_or(f64::NAN)),
            },
            Step::Not(_) | Step::Minus(_) | Step::Binary(..) => Value::Number(f64::NAN),
        }
    }
}
