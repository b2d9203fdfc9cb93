//! Names: `namespace/word` for tables and procedures of clients, a plain word for tables of apps.
//!
//! Who may write what follows from the name alone. A table without a namespace belongs to the apps
//! that decide on events; no client operation writes it.

use crate::Refusal;

/// Longest namespace, table, procedure or column name, bytes.
pub const NAME_BYTES_MAX: usize = 63;

/// What is wrong with a word of a name, if anything.
fn problem(word: &str) -> Option<&'static str> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
    if word.is_empty() || word.len() > NAME_BYTES_MAX {
        Some("a name has 1 to 63 characters")
    } else if !word.chars().all(allowed) {
        Some("a name has lower-case letters, digits, '-', '_' and '.' only")
    } else {
        None
    }
}

fn refused(name: &str, problem: &str) -> Refusal {
    let shown: String = name.chars().take(2 * NAME_BYTES_MAX + 1).collect();
    Refusal::Name { name: shown, problem: problem.to_owned() }
}

/// The namespace of a full name; `None` for the tables of apps.
pub fn namespace_of(name: &str) -> Option<&str> {
    name.split_once('/').map(|(namespace, _)| namespace)
}

/// Checks `namespace/word` and gives the two.
///
/// # Errors
/// [`Refusal::ReadOnly`] for a plain word, [`Refusal::Name`].
pub fn split_name(name: &str) -> Result<(&str, &str), Refusal> {
    let Some((namespace, word)) = name.split_once('/') else {
        return Err(match problem(name) {
            None => Refusal::ReadOnly { table: name.to_owned() },
            Some(problem) => refused(name, problem),
        });
    };
    check_word(namespace)?;
    check_word(word)?;
    Ok((namespace, word))
}

/// Checks a namespace, a column or the word of a procedure.
///
/// # Errors
/// [`Refusal::Name`].
pub fn check_word(word: &str) -> Result<(), Refusal> {
    problem(word).map_or(Ok(()), |problem| Err(refused(word, problem)))
}
