//! Pictures of curves as SVG: axes, marks, lines, names. A few lines, so that no library draws them.

use std::fmt::Write as _;

/// A curve.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

/// Curves over one axis.
#[derive(Clone, Debug)]
pub struct Picture {
    /// What it shows.
    pub title: String,
    /// What the axis across is of.
    pub across: String,
    /// What the axis up is of.
    pub up: String,
    /// Whether each axis, across and up, is logarithmic.
    pub logarithmic: (bool, bool),
    /// The curves.
    pub lines: Vec<Line>,
}

/// Size of the whole, and of its margins: left, top, right, bottom.
const SIZE: (f64, f64) = (760.0, 420.0);
const MARGIN: (f64, f64, f64, f64) = (70.0, 40.0, 190.0, 50.0);
/// Apart for eyes that tell few colours, and by dashes too.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#000000"];
const DASHES: [&str; 3] = ["none", "6 3", "2 3"];

/// One axis.
struct Axis {
    from: f64,
    to: f64,
    logarithmic: bool,
    /// Its place in the picture.
    begin: f64,
    end: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64> + Clone, logarithmic: bool, (begin, end): (f64, f64)) -> Axis {
        let most = values.clone().fold(f64::MIN_POSITIVE, f64::max);
        let (from, to) = if logarithmic {
            let least = values.filter(|value| *value > 0.0).fold(most, f64::min);
            (10_f64.powf(least.log10().floor()), 10_f64.powf(most.log10().ceil()))
        } else {
            (0.0, most)
        };
        Axis { from, to: if to > from { to } else { from + 1.0 }, logarithmic, begin, end }
    }

    fn at(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value.max(self.from).log10() - self.from.log10()) / (self.to.log10() - self.from.log10())
        } else {
            (value - self.from) / (self.to - self.from)
        };
        self.begin + (self.end - self.begin) * share
    }

    fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let (low, high) = (self.from.log10().round() as i32, self.to.log10().round() as i32);
            return (low..=high).map(|power| 10_f64.powi(power)).collect();
        }
        let step = 10_f64.powf(self.to.log10().floor());
        let step =
            [0.1, 0.2, 0.5, 1.0].map(|part| part * step).into_iter().find(|step| self.to / step <= 10.0);
        let step = step.unwrap_or(self.to);
        (0..=10).map(|count| f64::from(count) * step).filter(|value| *value <= self.to * 1.000_1).collect()
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Picture {
    /// The picture.
    pub fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points).copied();
        let (left, top, right, bottom) = MARGIN;
        let across = Axis::over(points().map(|point| point.0), self.logarithmic.0, (left, SIZE.0 - right));
        let up = Axis::over(points().map(|point| point.1), self.logarithmic.1, (SIZE.1 - bottom, top));
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{left}\" y=\"22\" font-size=\"14\">{}</text>\n",
            SIZE.0,
            SIZE.1,
            escaped(&self.title)
        );
        // Writing to a string cannot fail.
        for value in across.ticks() {
            let x = across.at(value);
            let _ = writeln!(
                text,
                "<line x1=\"{x:.1}\" y1=\"{top}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value}</text>",
                up.begin,
                up.begin + 16.0
            );
        }
        for value in up.ticks() {
            let y = up.at(value);
            let _ = writeln!(
                text,
                "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                across.end,
                left - 6.0,
                y + 4.0,
                (value * 1e6).round() / 1e6
            );
        }
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n\
             <text x=\"16\" y=\"{:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {:.1})\">{}</text>",
            (across.begin + across.end) / 2.0,
            SIZE.1 - 12.0,
            escaped(&self.across),
            (up.begin + up.end) / 2.0,
            (up.begin + up.end) / 2.0,
            escaped(&self.up)
        );
        for (number, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let dash = DASHES[number / COLOURS.len() % DASHES.len()];
            let path: Vec<String> =
                line.points.iter().map(|(x, y)| format!("{:.1},{:.1}", across.at(*x), up.at(*y))).collect();
            let _ = writeln!(
                text,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>",
                path.join(" ")
            );
            for point in &path {
                let (x, y) = point.split_once(',').unwrap_or_default();
                let _ = writeln!(text, "<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{colour}\"/>");
            }
            let y = top + 14.0 + 18.0 * number as f64;
            let x = SIZE.0 - right + 14.0;
            let _ = writeln!(
                text,
                "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"2\" \
                 stroke-dasharray=\"{dash}\"/><text x=\"{}\" y=\"{}\">{}</text>",
                x + 24.0,
                x + 30.0,
                y + 4.0,
                escaped(&line.name)
            );
        }
        text.push_str("</svg>\n");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_within_the_axes_and_every_name_is_there() {
        for logarithmic in [(false, false), (true, true)] {
            let lines = vec![
                Line { name: "a < b".into(), points: vec![(1.0, 0.5), (10.0, 30.0), (64.0, 900.0)] },
                Line { name: "c".into(), points: vec![(1.0, 0.0)] },
            ];
            let picture =
                Picture { title: "t".into(), across: "x".into(), up: "y".into(), logarithmic, lines };
            let svg = picture.svg();
            assert!(
                svg.starts_with("<svg") && svg.ends_with("</svg>\n") && svg.contains("a &lt; b"),
                "{svg}"
            );
            let circles: Vec<(f64, f64)> = svg
                .lines()
                .filter_map(|line| line.strip_prefix("<circle cx=\""))
                .map(|line| {
                    let numbers: Vec<f64> = line.split('"').filter_map(|part| part.parse().ok()).collect();
                    (numbers[0], numbers[1])
                })
                .collect();
            assert_eq!(circles.len(), 4);
            let within = |(x, y): &(f64, f64)| {
                (MARGIN.0..=SIZE.0 - MARGIN.2).contains(x) && (MARGIN.1..=SIZE.1 - MARGIN.3).contains(y)
            };
            assert!(circles.iter().all(within), "{circles:?}");
            assert!(circles[2].1 < circles[0].1, "more is above less");
        }
    }
}
