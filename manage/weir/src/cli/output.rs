//! How things are printed. Colours only on a terminal, and not when `NO_COLOR` is set.

use crate::failure::Failure;
use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table, presets};
use serde::Serialize;
use std::io::IsTerminal;

/// Terminals narrower than this (columns) get tables as wide as their content.
const COLUMNS_MIN: u16 = 40;

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// For files.
    Yaml,
}

/// Whether standard output takes colours.
pub fn colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// Prints a value as JSON or YAML, or with `table` for people.
///
/// # Errors
/// [`Failure::Input`] when the value has no YAML form.
pub fn print<T: Serialize>(format: Format, value: &T, table: impl FnOnce()) -> Result<(), Failure> {
    match format {
        Format::Table => table(),
        Format::Json => {
            let text =
                serde_json::to_string_pretty(value).map_err(|error| Failure::Input(error.to_string()))?;
            say!("{text}");
        }
        Format::Yaml => {
            // By way of JSON, so that both forms have the same names and types.
            let json = serde_json::to_value(value).map_err(|error| Failure::Input(error.to_string()))?;
            put!("{}", yaml(&json)?);
        }
    }
    Ok(())
}

/// Says what was done: in words for people, else as fields.
///
/// # Errors
/// [`Failure::Input`] when the value has no YAML form.
pub fn done(format: Format, fields: serde_json::Value, words: &str) -> Result<(), Failure> {
    print(format, &fields, || say!("{words}"))
}

/// A JSON value as YAML text.
///
/// # Errors
/// [`Failure::Input`].
pub fn yaml(value: &serde_json::Value) -> Result<String, Failure> {
    let text = serde_saphyr::to_string(value).map_err(|error| Failure::Input(error.to_string()))?;
    Ok(if text.ends_with('\n') { text } else { text + "\n" })
}

/// A table with a header and no frame.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    let plain = !colours();
    if plain {
        table.force_no_tty();
    }
    // A serial line says that it has no columns at all: a letter a line helps nobody.
    if table.width().is_some_and(|columns| columns < COLUMNS_MIN) {
        table.set_content_arrangement(ContentArrangement::Disabled);
    }
    table.set_header(header.iter().map(|title| {
        let cell = Cell::new(title.to_uppercase());
        if plain { cell } else { cell.add_attribute(Attribute::Bold) }
    }));
    table
}

/// Text in a colour, when there are colours.
pub fn paint(text: impl ToString, colour: Color) -> Cell {
    let cell = Cell::new(text);
    if colours() { cell.fg(colour) } else { cell }
}

/// Text in an ANSI colour (such as 31 for red), when there are colours.
pub fn ansi(text: &str, code: u8) -> String {
    if colours() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
}
