//! Figures of one run: medians and ranges, comparison with the subject, lines, markdown and JSON.

use super::Metric;
use crate::{Error, Result, table};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// One figure of one window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The path.
    pub path: String,
    /// The figure.
    pub metric: Metric,
    /// In the metric's unit.
    pub value: f64,
    /// Window, from 0.
    pub window: u32,
    /// Share of the machine that was busy just before, while our paths rested.
    pub busy_before: f64,
    /// The same just after.
    pub busy_after: f64,
    /// Attempts that it took.
    pub attempts: u32,
    /// True if foreign load was seen and no attempt was free of it.
    pub marked: bool,
}

/// Something to say of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathNote {
    /// The path.
    pub name: String,
    /// The system that it is a mode of.
    pub system: String,
    /// The words.
    pub text: String,
}

/// Median and range of one figure on one path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The path.
    pub path: String,
    /// The figure.
    pub metric: Metric,
    /// Median over the windows.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// Greatest.
    pub max: f64,
    /// Windows that gave the figure.
    pub windows: usize,
    /// How many of those are marked for foreign load.
    pub marked: usize,
}

/// One figure of the subject beside the best mode of a peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The figure.
    pub metric: Metric,
    /// Median of the subject.
    pub subject: f64,
    /// The peer system.
    pub peer: String,
    /// The path of that system that did best.
    pub mode: String,
    /// Its median.
    pub value: f64,
    /// Subject divided by peer, whichever direction is better.
    pub ratio: f64,
    /// True if the subject is at least as good.
    pub ahead: bool,
}

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The path that the others are compared with.
    pub subject: String,
    /// Windows asked for.
    pub windows: u32,
    /// Processor, kernel and cores.
    pub machine: String,
    /// The paths measured, with their conditions.
    pub paths: Vec<PathNote>,
    /// The paths that could not be set up, with the reason.
    pub not_run: Vec<PathNote>,
    /// Measurements that failed, with the reason.
    pub failures: Vec<PathNote>,
    /// All figures.
    pub samples: Vec<Sample>,
}

impl Report {
    pub(super) fn new(subject: &str, windows: u32) -> Self {
        Self {
            subject: subject.to_string(),
            windows,
            machine: machine(),
            paths: Vec::new(),
            not_run: Vec::new(),
            failures: Vec::new(),
            samples: Vec::new(),
        }
    }

    /// Median and range of a figure on a path; `None` if no window gave it.
    pub fn summary(&self, path: &str, metric: Metric) -> Option<Summary> {
        let samples: Vec<&Sample> =
            self.samples.iter().filter(|sample| sample.path == path && sample.metric == metric).collect();
        let mut values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
        values.sort_by(f64::total_cmp);
        Some(Summary {
            path: path.to_string(),
            metric,
            median: median(&values)?,
            min: *values.first()?,
            max: *values.last()?,
            windows: values.len(),
            marked: samples.iter().filter(|sample| sample.marked).count(),
        })
    }

    /// The subject beside the best mode of each peer, for each figure that both have.
    pub fn comparisons(&self) -> Vec<Comparison> {
        let mut systems: Vec<&str> = Vec::new();
        for path in self.paths.iter().filter(|path| path.name != self.subject) {
            if !systems.contains(&path.system.as_str()) {
                systems.push(&path.system);
            }
        }
        let pairs =
            Metric::ALL.iter().flat_map(|metric| systems.iter().map(move |system| (*metric, *system)));
        pairs.filter_map(|(metric, system)| self.compare(metric, system)).collect()
    }

    fn compare(&self, metric: Metric, system: &str) -> Option<Comparison> {
        let subject = self.summary(&self.subject, metric)?.median;
        let peers = self.paths.iter().filter(|path| path.system == system && path.name != self.subject);
        let best = peers.filter_map(|path| self.summary(&path.name, metric)).reduce(|best, other| {
            let better = if metric.higher_is_better() {
                other.median > best.median
            } else {
                other.median < best.median
            };
            if better { other } else { best }
        })?;
        let ratio = subject / best.median;
        let ahead = if metric.higher_is_better() { ratio >= 1.0 } else { ratio <= 1.0 };
        Some(Comparison {
            metric,
            subject,
            peer: system.to_string(),
            mode: best.path,
            value: best.median,
            ratio,
            ahead,
        })
    }

    /// `RESULT net <metric> <subject>=<value><unit> <peer>=<value><unit> ratio=<x.xx>`, one a figure and peer.
    pub fn result_lines(&self) -> Vec<String> {
        let line = |row: &Comparison| {
            format!(
                "RESULT net {} {}={}{unit} {}={}{unit} ratio={:.2}",
                row.metric.name(),
                self.subject,
                figure(row.subject),
                row.peer,
                figure(row.value),
                row.ratio,
                unit = row.metric.unit(),
            )
        };
        self.comparisons().iter().map(line).collect()
    }

    /// Which mode was best for each figure, for systems that have several.
    pub fn best_mode_lines(&self) -> Vec<String> {
        let line = |row: &Comparison| format!("BEST net {} {}={}", row.metric.name(), row.peer, row.mode);
        self.comparisons().iter().filter(|row| row.peer != row.mode).map(line).collect()
    }

    /// Header and rows of all paths: medians, ranges in parentheses, `*` where a window is marked.
    pub fn rows(&self) -> (Vec<&'static str>, Vec<Vec<String>>) {
        let header = std::iter::once("path").chain(Metric::ALL.iter().map(|metric| metric.title())).collect();
        let cell = |path: &str, metric| match self.summary(path, metric) {
            None => "no figure".to_string(),
            Some(s) => {
                let mark = if s.marked > 0 { format!(" *{}", s.marked) } else { String::new() };
                format!("{} ({}-{}){mark}", figure(s.median), figure(s.min), figure(s.max))
            }
        };
        let row = |path: &PathNote| {
            let cells = Metric::ALL.iter().map(|metric| cell(&path.name, *metric));
            std::iter::once(path.name.clone()).chain(cells).collect()
        };
        (header, self.paths.iter().map(row).collect())
    }

    /// Header and rows of the comparison.
    pub fn comparison_rows(&self) -> (Vec<&str>, Vec<Vec<String>>) {
        let header =
            vec!["figure", self.subject.as_str(), "peer", "best mode", "its figure", "ratio", "verdict"];
        let row = |row: &Comparison| {
            vec![
                row.metric.title().to_string(),
                figure(row.subject),
                row.peer.clone(),
                row.mode.clone(),
                figure(row.value),
                format!("{:.2}", row.ratio),
                if row.ahead { "ahead" } else { "behind" }.to_string(),
            ]
        };
        (header, self.comparisons().iter().map(row).collect())
    }

    /// What a reader needs to know beside the tables.
    pub fn notes(&self) -> Vec<String> {
        let fewest = |path: &PathNote| {
            let counts =
                Metric::ALL.iter().map(|metric| self.summary(&path.name, *metric).map_or(0, |s| s.windows));
            counts.min().unwrap_or(0)
        };
        let mut notes = vec![
            format!("Machine: {}.", self.machine),
            format!(
                "Medians (range) of {} interleaved windows in changing order; client on core 0, server on core 1; \
                 underlay MTU 1600, tenant MTU 1500. CPU is all busy time of the machine. \
                 `*n`: n windows with more than 15 % foreign load just before or after.",
                self.windows
            ),
        ];
        for path in &self.paths {
            notes.push(format!("{}: {}; at least {} windows a figure.", path.name, path.text, fewest(path)));
        }
        notes.extend(self.not_run.iter().map(|note| format!("NOT RUN {}: {}", note.name, note.text)));
        notes.extend(self.failures.iter().map(|note| format!("FAILED once, {}: {}", note.name, note.text)));
        notes
    }

    /// The page for documents.
    pub fn markdown(&self) -> String {
        let (header, rows) = self.rows();
        let (comparison_header, comparison_rows) = self.comparison_rows();
        let mut text = table::markdown(&header, &rows);
        text.push('\n');
        text.push_str(&table::markdown(&comparison_header, &comparison_rows));
        text.push('\n');
        for note in self.notes() {
            text.push_str(&format!("- {note}\n"));
        }
        text
    }

    /// Writes `net.md` and `net.json` into `folder`, which is made if it is not there.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let json =
            serde_json::to_string_pretty(self).map_err(|error| Error::io("write the report", error))?;
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(folder.join("net.md"), self.markdown()))
            .and_then(|()| std::fs::write(folder.join("net.json"), json))
            .map_err(|error| Error::io(format!("write into {}", folder.display()), error))
    }

    /// What a person sees on the terminal: tables, notes, result lines.
    pub fn terminal(&self) -> String {
        let (header, rows) = self.rows();
        let (comparison_header, comparison_rows) = self.comparison_rows();
        let parts = [
            table::terminal(&header, &rows),
            table::terminal(&comparison_header, &comparison_rows),
            self.notes().join("\n"),
            self.best_mode_lines().join("\n"),
            self.result_lines().join("\n"),
        ];
        parts.join("\n")
    }
}

/// Median of sorted values.
fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        return sorted.get(middle).copied();
    }
    Some((sorted.get(middle.checked_sub(1)?)? + sorted.get(middle)?) / 2.0)
}

/// Three significant digits, as the spread of the windows deserves.
pub(super) fn figure(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field =
        |name: &str| cpu.lines().find(|line| line.starts_with(name)).and_then(|line| line.split(": ").nth(1));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // The build part of a kernel's name says nothing to a reader.
    let kernel: String = kernel.trim().chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    format!("{} cores {}, Linux {kernel}", cores, field("model name").unwrap_or("of unknown kind").trim())
}
