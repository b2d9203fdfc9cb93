//! What a library says of input that it does not take, in the words of whoever wrote the input.
//!
//! Readers say what they expected in terms of this program's types. Those have a fixed form, and here each becomes a sentence that says
//! what is wrong and what would be right. What is in no such form is a sentence of our own already.

/// Names of types, and what they are to a person.
const EXPECTED: [(&str, &str); 24] = [
    ("u8", "a whole number from 0 to 255"),
    ("u16", "a whole number from 0 to 65535"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number from 0 to 18446744073709551615"),
    ("usize", "a whole number from 0 to 18446744073709551615"),
    ("u128", "a whole number that is not negative"),
    ("i8", "a whole number from -128 to 127"),
    ("i16", "a whole number from -32768 to 32767"),
    ("i32", "a whole number from -2147483648 to 2147483647"),
    ("i64", "a whole number from -9223372036854775808 to 9223372036854775807"),
    ("isize", "a whole number"),
    ("f32", "a number"),
    ("f64", "a number"),
    ("a nonzero u8", "a whole number from 1 to 255"),
    ("a nonzero u16", "a whole number from 1 to 65535"),
    ("a nonzero u32", "a whole number from 1 to 4294967295"),
    ("a boolean", "true or false"),
    ("a string", "text"),
    ("a borrowed string", "text"),
    ("string or map", "a word, or fields with values"),
    ("a sequence", "a list"),
    ("a map", "fields with values"),
    ("unit", "nothing (null)"),
    ("any value", "a value"),
];

/// The sentence for what a reader of JSON, a query or a path said.
pub fn plain(said: &str) -> String {
    let (said, place) = without_place(said.trim());
    // Readers of queries name the field themselves.
    let of_field = || {
        let (field, said) = said.split_once(": ")?;
        Some(format!("{field}: {}", sentence(said)?))
    };
    match sentence(said).or_else(of_field) {
        Some(sentence) => sentence + &place,
        None => format!("{said}{place}"),
    }
}

/// Splits off ` at line 1 column 2`, and says it so that nobody is sent to line 0.
fn without_place(said: &str) -> (&str, String) {
    let Some((front, place)) = said.rsplit_once(" at line ") else { return (said, String::new()) };
    match place.split_once(" column ") {
        Some((line, column))
            if line.parse::<u32>().is_ok_and(|line| line > 0) && column.parse::<u32>().is_ok() =>
        {
            (front, format!(" (line {line}, column {column})"))
        }
        Some(_) => (front, String::new()),
        None => (said, String::new()),
    }
}

fn sentence(said: &str) -> Option<String> {
    let between = |start: &str, end: &str| said.strip_prefix(start)?.split_once(end);
    if let Some((found, expected)) =
        between("invalid type: ", ", expected ").or(between("invalid value: ", ", expected "))
    {
        return Some(format!("{} is not allowed: {} is wanted", found_as(found), expected_as(expected)));
    }
    if let Some((length, expected)) = between("invalid length ", ", expected ") {
        return Some(format!("{length} parts are here: {} is wanted", expected_as(expected)));
    }
    if let Some((field, rest)) = between("unknown field `", "`, ") {
        return Some(match names(rest) {
            names if names.is_empty() => format!("there is no field '{field}' here, nor any other"),
            names => format!("there is no field '{field}' here: the fields are {names}"),
        });
    }
    if let Some((found, rest)) = between("unknown variant `", "`, ") {
        return Some(match names(rest) {
            names if names.is_empty() => format!("'{found}' is not allowed here, nor is anything else"),
            names => format!("'{found}' is not allowed: it is one of {names}"),
        });
    }
    if let Some(field) = said.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return Some(format!("the field '{field}' is missing"));
    }
    if let Some(field) = said.strip_prefix("duplicate field `").and_then(|rest| rest.strip_suffix('`')) {
        return Some(format!("the field '{field}' is there twice: say it once"));
    }
    syntax(said).or_else(|| number(said))
}

/// Faults of the text itself.
fn syntax(said: &str) -> Option<String> {
    let sentence = match said {
        "EOF while parsing a value" if said.len() == said.trim().len() => {
            "the document ends before a value: is it whole?"
        }
        "EOF while parsing a list" | "EOF while parsing an object" | "EOF while parsing a string" => {
            "the document ends too early: is it whole?"
        }
        "trailing characters" => "something stands behind the document: one JSON document is wanted",
        "trailing comma" => "a comma stands before the end of a list or of fields: leave it out",
        "key must be a string" => "the name of a field is text in double quotes",
        "expected value" => "this is not JSON: a value is wanted here",
        "expected ident" => "this is not JSON: of words there are only true, false and null",
        "expected `:`" => "a colon is missing behind the name of a field",
        "expected `,` or `}`" => "a comma, or the brace that ends the fields, is missing",
        "expected `,` or `]`" => "a comma, or the bracket that ends the list, is missing",
        "invalid number" | "number out of range" => "this is no number that can be taken",
        "recursion limit exceeded" => "lists and fields are nested too deep",
        "control character (\\u0000-\\u001F) found while parsing a string" => {
            "a control character stands in text: write it as an escape, such as \\n"
        }
        "invalid escape" | "lone leading surrogate in hex escape" | "unexpected end of hex escape" => {
            "an escape in text is none of JSON"
        }
        "invalid unicode code point" => "text is UTF-8",
        _ => return None,
    };
    Some(sentence.to_owned())
}

/// What is said where text was read as a number or a truth value, as in a query.
fn number(said: &str) -> Option<String> {
    let sentence = match said {
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            "a whole number that is not negative is wanted"
        }
        "number too large to fit in target type" => "the number is too large",
        "number too small to fit in target type" => "the number is too small",
        "provided string was not `true` or `false`" => "true or false is wanted",
        "invalid float literal" => "a number is wanted",
        _ => return parsed(said),
    };
    Some(sentence.to_owned())
}

/// ``Cannot parse `id` with value `x` to a `u64` `` or ``Cannot parse `x` to a `u64` ``, as paths have it.
fn parsed(said: &str) -> Option<String> {
    if said.starts_with("Invalid UTF-8 in ") {
        return Some("it is not UTF-8: text in UTF-8 is wanted".to_owned());
    }
    let rest = said.strip_prefix("Cannot parse ")?;
    let (front, kind) = rest.rsplit_once(" to a `")?;
    let value = front.rsplit_once("value `").map_or(front, |(_, value)| value).trim_matches('`');
    Some(format!("'{value}' is not allowed: {} is wanted", expected_as(kind.trim_end_matches('`'))))
}

fn found_as(found: &str) -> String {
    let ticked = |kind: &str| found.strip_prefix(kind).map(|value| value.trim_matches('`').to_owned());
    if let Some(text) = found.strip_prefix("string ") {
        return format!("the text {text}");
    }
    if let Some(value) = ticked("integer ").or_else(|| ticked("floating point ")) {
        return format!("the number {value}");
    }
    if let Some(value) = ticked("boolean ") {
        return format!("'{value}'");
    }
    match found {
        "null" | "unit value" => "nothing (null)".to_owned(),
        "sequence" => "a list".to_owned(),
        "map" => "a value with fields".to_owned(),
        other => other.to_owned(),
    }
}

fn expected_as(expected: &str) -> String {
    let known = EXPECTED.iter().find(|(name, _)| *name == expected);
    if let Some((_, meaning)) = known {
        return (*meaning).to_owned();
    }
    if expected.starts_with("struct ") || expected.starts_with("internally tagged enum ") {
        return "fields with values".to_owned();
    }
    if expected.starts_with("enum ") || expected.starts_with("variant ") {
        return "one of its words".to_owned();
    }
    expected.to_owned()
}

/// ``expected one of `a`, `b` `` as `a, b`.
fn names(expected: &str) -> String {
    let listed = expected.split('`').skip(1).step_by(2);
    listed.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
