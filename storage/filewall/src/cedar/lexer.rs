//! Words of the language.

use super::{Glyph, TEXT_BYTES_MAX};

/// A word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// A name or a keyword.
    Name(String),
    /// A text, and the same as a pattern: `\*` is a star in it.
    Text(Vec<Glyph>, bool),
    /// A number.
    Number(u64),
    /// A sign.
    Sign(&'static str),
}

/// Two-character signs first, so that they are found before their beginnings.
const SIGNS: [&str; 26] = [
    "::", "==", "!=", "<=", ">=", "&&", "||", "<", ">", "!", "(", ")", "[", "]", "{", "}", ",", ";", ":",
    ".", "+", "-", "*", "@", "?", "%",
];

/// The text of a literal; `None` if it has a `\*`, which only patterns may have.
pub fn text_of(glyphs: &[Glyph], pattern: bool) -> Option<String> {
    if pattern {
        return None;
    }
    Some(
        glyphs
            .iter()
            .map(|glyph| match glyph {
                Glyph::Exact(exact) => *exact,
                Glyph::Any => '*',
            })
            .collect(),
    )
}

/// Cuts a text into words, each with its line.
///
/// # Errors
/// What is wrong, with its line.
pub fn words(text: &str) -> Result<Vec<(Token, usize)>, String> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(format!("longer than {TEXT_BYTES_MAX} bytes"));
    }
    let mut words = Vec::new();
    let mut line = 1;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if first == '\n' {
            line += 1;
        }
        if first.is_whitespace() {
            rest = &rest[first.len_utf8()..];
        } else if rest.starts_with("//") {
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
        } else if first == '"' {
            let (token, after) = literal(&rest[1..]).map_err(|reason| format!("line {line}: {reason}"))?;
            line += rest[..rest.len() - after.len()].matches('\n').count();
            words.push((token, line));
            rest = after;
        } else if first.is_ascii_digit() {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let number =
                rest[..end].parse().map_err(|_| format!("line {line}: a number that is too large"))?;
            words.push((Token::Number(number), line));
            rest = &rest[end..];
        } else if first.is_ascii_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            words.push((Token::Name(rest[..end].to_string()), line));
            rest = &rest[end..];
        } else {
            let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
            let sign = sign.ok_or_else(|| format!("line {line}: '{first}' is no sign of the language"))?;
            words.push((Token::Sign(sign), line));
            rest = &rest[sign.len()..];
        }
    }
    Ok(words)
}

fn literal(text: &str) -> Result<(Token, &str), String> {
    let mut glyphs = Vec::new();
    let mut pattern = false;
    let mut rest = text.chars();
    while let Some(next) = rest.next() {
        match next {
            '"' => return Ok((Token::Text(glyphs, pattern), rest.as_str())),
            '\\' => {
                let (glyph, after) = escape(rest.as_str())?;
                // Outside patterns a star is itself, so that one that is escaped is a mistake.
                pattern |= rest.as_str().starts_with('*');
                glyphs.push(Glyph::Exact(glyph));
                rest = after.chars();
            }
            '*' => glyphs.push(Glyph::Any),
            other => glyphs.push(Glyph::Exact(other)),
        }
    }
    Err("a text that does not end".to_string())
}

fn escape(text: &str) -> Result<(char, &str), String> {
    let mut rest = text.chars();
    let next = rest.next().ok_or("a text that ends in '\\'")?;
    let hexadecimal = |digits: &str| {
        u32::from_str_radix(digits, 16)
            .ok()
            .and_then(char::from_u32)
            .ok_or(format!("'{digits}' is no character"))
    };
    Ok((
        match next {
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            '0' => '\0',
            '\\' | '\'' | '"' | '*' => next,
            'x' => {
                let digits = rest.as_str().get(..2).ok_or("'\\x' needs two digits")?;
                let found = hexadecimal(digits)?;
                return Ok((found, &rest.as_str()[2..]));
            }
            'u' => {
                let inner = rest.as_str().strip_prefix('{').and_then(|rest| rest.split_once('}'));
                let (digits, after) = inner.ok_or("'\\u' needs digits in braces")?;
                return Ok((hexadecimal(digits)?, after));
            }
            other => return Err(format!("'\\{other}' is no character")),
        },
        rest.as_str(),
    ))
}
