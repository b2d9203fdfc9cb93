//! What readers of YAML and JSON complain about, in the words of documents: what a field takes, not which type of a program reads it.

use serde_json::Value;
use serde_path_to_error::{Path, Segment};

/// Most characters of a value that are shown.
const SHOWN_MAX: usize = 60;

/// A complaint about a field of a document, with the field, its value, and what is allowed.
pub(crate) fn wrong(path: &Path, message: &str, body: &Value) -> String {
    let field = path.to_string();
    let message = message.split(" at line ").next().unwrap_or(message);
    if let Some((name, known)) = named(message, "unknown field `") {
        let parent = parent(&field, name);
        let there = match listed(known) {
            Some(names) => format!("there are {names}"),
            None => "it takes none".to_owned(),
        };
        return format!("{}there is no field '{name}'; {there}", place(&parent));
    }
    if let Some((name, _)) = named(message, "missing field `") {
        return format!("{}the field '{name}' is missing", place(&field));
    }
    if let Some((name, known)) = named(message, "unknown variant `") {
        let known = listed(known).unwrap_or_else(|| "what there is".to_owned());
        return format!("{}'{name}' is none of {known}", place(&field));
    }
    if let Some(rest) = ["invalid type: ", "invalid value: ", "invalid length "]
        .iter()
        .find_map(|begin| message.strip_prefix(begin))
    {
        let allowed = kind_of(rest.rsplit_once(", expected ").map_or("", |(_, allowed)| allowed));
        return format!("{}{} is not {allowed}", place(&field), shown(value(path, body)));
    }
    let value = shown(value(path, body));
    if message.contains("address syntax") {
        return format!("{}{value} is not an IP address, such as 10.0.0.5 or fd00::5", place(&field));
    }
    if message.starts_with("data did not match any variant") {
        return format!("{}{value} is not what this field takes", place(&field));
    }
    // What a field's own reader says: often with the value.
    match message.contains(&value) {
        true => format!("{}{message}", place(&field)),
        false => format!("{}{value}: {message}", place(&field)),
    }
}

/// What stands behind `begin` up to the next backquote, and what follows.
fn named<'m>(message: &'m str, begin: &str) -> Option<(&'m str, &'m str)> {
    message.strip_prefix(begin)?.split_once('`')
}

fn place(field: &str) -> String {
    if field.is_empty() || field == "." { String::new() } else { format!("field '{field}': ") }
}

/// Where an unknown field stands: its own name is said anyway.
fn parent(field: &str, name: &str) -> String {
    let parent = field.strip_suffix(name).map(|parent| parent.strip_suffix('.').unwrap_or(parent));
    parent.unwrap_or(field).to_owned()
}

fn value<'v>(path: &Path, body: &'v Value) -> Option<&'v Value> {
    path.iter().try_fold(body, |value, segment| match segment {
        Segment::Seq { index } => value.get(index),
        Segment::Map { key } => value.get(key),
        Segment::Enum { variant } => value.get(variant),
        Segment::Unknown => None,
    })
}

fn shown(value: Option<&Value>) -> String {
    let Some(value) = value else { return "this".to_owned() };
    let text = match value {
        Value::Null => return "nothing".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.chars().count() <= SHOWN_MAX {
        return format!("'{text}'");
    }
    format!("'{}…'", text.chars().take(SHOWN_MAX).collect::<String>())
}

/// The names in "one of `a`, `b`" or "`a` or `b`"; `None` if there are none.
fn listed(text: &str) -> Option<String> {
    let names: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
    let (last, others) = names.split_last()?;
    Some(if others.is_empty() { (*last).to_owned() } else { format!("{} or {last}", others.join(", ")) })
}

fn kind_of(asked: &str) -> String {
    let number = |last: u64| format!("a whole number from 0 to {last}");
    match asked {
        "u8" => number(u64::from(u8::MAX)),
        "u16" => number(u64::from(u16::MAX)),
        "u32" => number(u64::from(u32::MAX)),
        "u64" | "usize" => "a whole number, not negative".to_owned(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number of that size".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a string" | "string or map" | "a character" => {
            "a text; one that looks like a number, 'true' or 'null' goes in quotes".to_owned()
        }
        "a sequence" => "a list".to_owned(),
        text if text.contains("tuple") || text.contains("array") || text.contains("elements") => {
            "a list of that length".to_owned()
        }
        text if text.contains("address") => {
            "an IP address or prefix, such as 10.0.0.5 or 10.0.0.0/24".to_owned()
        }
        "a map" | "map with a single key" => "fields with values".to_owned(),
        text if text.starts_with("struct ") || text.contains("enum ") => "fields with values".to_owned(),
        _ => "what this field takes".to_owned(),
    }
}

/// What the reader of YAML says, once, and without its advice to programmers.
pub(crate) fn plain(message: &str) -> String {
    let lines: Vec<String> = message.lines().map(plain_line).collect();
    lines.join("\n")
}

fn plain_line(line: &str) -> String {
    // It shows the place, and below it, behind a mark, says again what is wrong.
    if let Some((before, marked)) = line.split_once('^')
        && before.trim_start().starts_with('|')
        && before.trim_matches([' ', '|']).is_empty()
    {
        let marks = marked.bytes().take_while(|byte| *byte == b'^').count();
        return format!("{before}^{}", &marked[..marks]);
    }
    let advice = ", set DuplicateKeyPolicy in Options if acceptable";
    match line.split_once("duplicate mapping key: ") {
        Some((before, rest)) if rest.contains(advice) => {
            let (key, after) = rest.split_once(advice).unwrap_or((rest, ""));
            format!("{before}the field '{key}' is given twice{after}")
        }
        _ => line.replace(advice, ""),
    }
}
