//! Tables for people: on the terminal, and as markdown for documents.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// A table for the terminal: the first column to the left, the others to the right. Every row has as many cells
/// as `header`.
pub fn terminal(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header.to_vec())
        .add_rows(rows.iter().cloned());
    for index in 1..header.len() {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

/// The same table as markdown.
pub fn markdown(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = format!("| {} |\n|---|", header.join(" | "));
    text.push_str(&"---:|".repeat(header.len().saturating_sub(1)));
    text.push('\n');
    for row in rows {
        text.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_hold_every_cell_and_markdown_aligns_figures_to_the_right() {
        let rows = vec![vec!["veth".to_string(), "12.5".to_string()]];
        assert_eq!(markdown(&["path", "Gbit/s"], &rows), "| path | Gbit/s |\n|---|---:|\n| veth | 12.5 |\n");
        let text = terminal(&["path", "Gbit/s"], &rows);
        for cell in ["path", "Gbit/s", "veth", "12.5"] {
            assert!(text.contains(cell), "{text}");
        }
    }
}
