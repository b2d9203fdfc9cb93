//! Numbers in the text format that Prometheus reads, and what makes such a text a good one.
//!
//! [`Exposition`] writes: each family once, with HELP and TYPE, its series together, values of labels escaped. What would make the
//! text a wrong one (a series twice, a family of two kinds, a name that is none) is left out and told by
//! [`Exposition::problems`], for a scrape must not fail for one of its lines. [`check`] finds the same in any text, whoever wrote it.
//!
//! Names are in base units, so that nobody must look up what a number is of: seconds and bytes, no thousandths or thousands of them;
//! counters end with `_total`, nothing else does; how long things take is a histogram, not a sum beside a longest one.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;

/// Parts of names that say a unit which is none of the base units, or an extreme that no query can be made of.
const WRONG_PARTS: [&str; 20] = [
    "us",
    "ns",
    "ms",
    "microseconds",
    "nanoseconds",
    "milliseconds",
    "minutes",
    "hours",
    "days",
    "kb",
    "mb",
    "gb",
    "kib",
    "mib",
    "gib",
    "kilobytes",
    "megabytes",
    "percent",
    "max",
    "min",
];

/// What a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only rises while the process lives.
    Counter,
    /// How something is now.
    Gauge,
    /// How often something had which size.
    Histogram,
}

impl Kind {
    /// As the text says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// What is wrong with a text or a part of it. Each names the family, or the line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Problem {
    /// Characters that a name or a label's name may not have.
    #[error("{0} is no name: letters, digits and _ are, not a digit first")]
    Name(String),
    /// Not in base units.
    #[error(
        "{0} has {1} in its name: base units are seconds and bytes, and what has a longest one is a histogram"
    )]
    Unit(String, &'static str),
    /// `_total` where it does not belong, or not where it does.
    #[error("{0} is a {1}: counters end with _total, and nothing else does")]
    Total(String, String),
    /// Nothing says what it is.
    #[error("{0} has no HELP")]
    NoHelp(String),
    /// Nothing says what kind it is.
    #[error("{0} has no TYPE")]
    NoType(String),
    /// A family is declared again, or its series are not together.
    #[error("{0} is there twice")]
    Twice(String),
    /// Two families of one name.
    #[error("{0} is of two kinds, or has two helps")]
    Differs(String),
    /// A line that is no sample.
    #[error("{0:?} is no sample: NAME{{LABEL=\"VALUE\",...}} NUMBER is")]
    Line(String),
}

/// Whether a name may be one of a family or label.
fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !name.is_empty() && name.bytes().all(fits) && !name.starts_with(|first: char| first.is_ascii_digit())
}

fn name_problem(name: &str, kind: &str) -> Option<Problem> {
    if !is_name(name) {
        return Some(Problem::Name(name.into()));
    }
    let wrong = name.split('_').find_map(|part| WRONG_PARTS.iter().find(|wrong| **wrong == part));
    if let Some(wrong) = wrong {
        return Some(Problem::Unit(name.into(), wrong));
    }
    let is_total = name.ends_with("_total");
    (is_total != (kind == "counter")).then(|| Problem::Total(name.into(), kind.into()))
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Labels with their braces; nothing where there are none.
fn labels_text(labels: &[(&str, &str)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let each: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    format!("{{{}}}", each.join(","))
}

#[derive(Clone, Debug)]
struct Family {
    kind: Kind,
    help: String,
    lines: String,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Exposition {
    /// By name, so that the text is the same whatever order numbers come in.
    families: BTreeMap<String, Family>,
    series: HashSet<String>,
    problems: BTreeSet<Problem>,
}

impl Exposition {
    /// With nothing in it.
    pub fn new() -> Exposition {
        Exposition::default()
    }

    /// Adds a number.
    pub fn put(&mut self, name: &str, kind: Kind, help: &str, labels: &[(&str, &str)], value: f64) {
        let series = format!("{name}{}", labels_text(labels));
        if self.begin(name, kind, help, labels, &series)
            && let Some(family) = self.families.get_mut(name)
        {
            // Writing to a string cannot fail.
            let _ = writeln!(family.lines, "{series} {value}");
        }
    }

    /// Adds a histogram: how many were at most each of `bounds`, and not at most the one before; the last of `counts` is of those
    /// above all. And the sum of all.
    pub fn histogram(
        &mut self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        bounds: &[f64],
        counts: &[u64],
        sum: f64,
    ) {
        let series = format!("{name}{}", labels_text(labels));
        if !self.begin(name, Kind::Histogram, help, labels, &series) {
            return;
        }
        let Some(family) = self.families.get_mut(name) else { return };
        let mut below = 0;
        for (at, count) in counts.iter().enumerate() {
            below += count;
            let bound = bounds.get(at).map_or_else(|| "+Inf".to_string(), f64::to_string);
            let with = labels_text(&[labels, &[("le", bound.as_str())]].concat());
            // Writing to a string cannot fail.
            let _ = writeln!(family.lines, "{name}_bucket{with} {below}");
        }
        let labels = labels_text(labels);
        let _ = writeln!(family.lines, "{name}_sum{labels} {sum}\n{name}_count{labels} {below}");
    }

    /// Whether a series may be written; its family is there then.
    fn begin(&mut self, name: &str, kind: Kind, help: &str, labels: &[(&str, &str)], series: &str) -> bool {
        let label = labels.iter().find(|(label, _)| !is_name(label) || *label == "le");
        let label = label.map(|(label, _)| Problem::Name(format!("{name}, label {label}")));
        let family = self.families.get(name);
        let differs = family.is_some_and(|family| family.kind != kind || family.help != one_line(help));
        let problems = [
            name_problem(name, kind.as_str()),
            label,
            help.trim().is_empty().then(|| Problem::NoHelp(name.into())),
            differs.then(|| Problem::Differs(name.into())),
        ];
        let is_wrong = |problem: &Problem| matches!(problem, Problem::Name(_) | Problem::Differs(_));
        let is_left_out = problems.iter().flatten().any(is_wrong);
        self.problems.extend(problems.into_iter().flatten());
        if is_left_out {
            return false;
        }
        if !self.series.insert(series.to_string()) {
            self.problems.insert(Problem::Twice(series.into()));
            return false;
        }
        if !self.families.contains_key(name) {
            let family = Family { kind, help: one_line(help), lines: String::new() };
            self.families.insert(name.to_string(), family);
        }
        true
    }

    /// The text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, Family { kind, help, lines }) in &self.families {
            // Writing to a string cannot fail.
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {}\n{lines}", kind.as_str());
        }
        text
    }

    /// What is wrong with what was put in.
    pub fn problems(&self) -> Vec<Problem> {
        self.problems.iter().cloned().collect()
    }
}

/// A help as its line has it.
fn one_line(help: &str) -> String {
    help.trim().replace('\\', "\\\\").replace('\n', "\\n")
}

/// A declared family of a text.
#[derive(Default)]
struct Declared<'a> {
    kind: Option<&'a str>,
    has_help: bool,
}

/// What is wrong with a text.
pub fn check(text: &str) -> Vec<Problem> {
    let mut families: HashMap<&str, Declared<'_>> = HashMap::new();
    let (mut series, mut problems, mut current) = (HashSet::new(), BTreeSet::new(), "");
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        if let Some((name, help)) =
            line.strip_prefix("# HELP ").map(|rest| rest.split_once(' ').unwrap_or((rest, "")))
        {
            let family = families.entry(name).or_default();
            if family.has_help {
                problems.insert(Problem::Twice(name.into()));
            }
            if help.trim().is_empty() {
                problems.insert(Problem::NoHelp(name.into()));
            }
            (family.has_help, current) = (true, name);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let family = families.entry(name).or_default();
            if family.kind.is_some() {
                problems.insert(Problem::Twice(name.into()));
            }
            if !family.has_help {
                problems.insert(Problem::NoHelp(name.into()));
            }
            problems.extend(name_problem(name, kind));
            (family.kind, current) = (Some(kind), name);
        } else if !line.starts_with('#') {
            let Some((name, labels)) = sample(line) else {
                problems.insert(Problem::Line(line.into()));
                continue;
            };
            let is_histogram = families.get(current).is_some_and(|family| family.kind == Some("histogram"));
            let parts = ["_bucket", "_sum", "_count"];
            let family = parts.iter().find_map(|part| name.strip_suffix(part)).filter(|_| is_histogram);
            let family = family.unwrap_or(name);
            if families.get(family).is_none_or(|family| family.kind.is_none()) {
                problems.insert(Problem::NoType(family.into()));
            } else if family != current {
                problems.insert(Problem::Twice(family.into()));
            }
            let mut sorted = labels;
            sorted.sort_unstable();
            if !series.insert((name, sorted.clone())) {
                problems.insert(Problem::Twice(format!("{name}{sorted:?}")));
            }
        }
    }
    problems.into_iter().collect()
}

/// Name and labels of a sample, if it is one.
fn sample(line: &str) -> Option<(&str, Vec<(&str, &str)>)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, behind) = rest.split_once("=\"")?;
            let end = end_of_value(behind)?;
            labels.push((label, &behind[..end]));
            rest = &behind[end + 1..];
            rest = rest.strip_prefix(',').unwrap_or(rest);
            if !is_name(label) {
                return None;
            }
        }
        rest = &rest[1..];
    }
    let is_number = rest.strip_prefix(' ')?.parse::<f64>().is_ok();
    (is_name(name) && is_number).then_some((name, labels))
}

/// Where the quote is that ends a label's value.
fn end_of_value(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })
}

#[cfg(test)]
mod tests;
