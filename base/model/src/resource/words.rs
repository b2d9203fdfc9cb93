//! A reader's complaints in the words of documents: what a field takes, not which type of a program reads it.

/// What is allowed, by a complaint of the JSON reader.
pub(super) fn allowed(message: &str) -> String {
    let message = message.split(" at line ").next().unwrap_or(message);
    if let Some(known) =
        message.strip_prefix("unknown variant `").and_then(|rest| rest.split_once("`, expected "))
    {
        return listed(known.1);
    }
    if message.starts_with("invalid value: ") || message.starts_with("invalid type: ") {
        let expected = message.rsplit_once(", expected ").map_or("", |(_, expected)| expected);
        return kind_of(expected);
    }
    if let Some(rest) = message.strip_prefix("invalid length ") {
        return rest
            .split_once(", expected ")
            .map_or_else(|| rest.to_owned(), |(_, expected)| expected.to_owned());
    }
    if message == "invalid IP address syntax" || message == "invalid IPv4 address syntax" {
        return "an IP address, such as 10.0.0.5 or fd00::5".to_owned();
    }
    if message.contains("address syntax") {
        return "an IP prefix, such as 10.0.0.0/24 or fd00::/64".to_owned();
    }
    message.to_owned()
}

/// The names in "one of `a`, `b`" or "`a` or `b`".
pub(super) fn listed(text: &str) -> String {
    let names: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
    match names.split_last() {
        None => text.to_owned(),
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
    }
}

fn kind_of(expected: &str) -> String {
    let number = |last: u64| format!("a whole number from 0 to {last}");
    match expected {
        "u8" => number(u64::from(u8::MAX)),
        "u16" => number(u64::from(u16::MAX)),
        "u32" => number(u64::from(u32::MAX)),
        "u64" | "usize" => "a whole number, not negative".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a string" => "a text; one that looks like a number, 'true' or 'null' goes in quotes".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "fields with values".to_owned(),
        text if text.starts_with("struct ") || text.contains("enum ") => "fields with values".to_owned(),
        text if text.contains("IP address")
            || text.contains("IPv4 address")
            || text.contains("IPv6 address") =>
        {
            "an IP address or prefix, such as 10.0.0.5 or 10.0.0.0/24".to_owned()
        }
        text => text.to_owned(),
    }
}
