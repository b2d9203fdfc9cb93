//! Windows in parts: the newest part fills, the oldest falls out.

/// Parts of a window.
const PARTS: usize = 32;

/// Which part of time a moment is in, and how much of the window before it is in full parts.
fn part(now_ns: u64, part_ns: u64) -> u64 {
    now_ns / part_ns
}

/// Counts of events.
#[derive(Clone, Debug)]
pub struct Counts {
    part_ns: u64,
    parts: [(u64, u64); PARTS + 1],
}

impl Counts {
    /// Counts of the last `window_ns`.
    pub fn new(window_ns: u64) -> Counts {
        Counts { part_ns: (window_ns / PARTS as u64).max(1), parts: [(0, 0); PARTS + 1] }
    }

    /// Counts an event.
    pub fn add(&mut self, now_ns: u64) {
        let number = part(now_ns, self.part_ns);
        let slot = &mut self.parts[(number % (PARTS as u64 + 1)) as usize];
        if slot.0 != number {
            *slot = (number, 0);
        }
        slot.1 += 1;
    }

    /// Events in the window before `now_ns`.
    pub fn sum(&self, now_ns: u64) -> u64 {
        let newest = part(now_ns, self.part_ns);
        let inside = |(number, _): &&(u64, u64)| *number + PARTS as u64 > newest && *number <= newest;
        self.parts.iter().filter(inside).map(|(_, count)| count).sum()
    }

    /// Events a second in the window before `now_ns`.
    pub fn rate(&self, now_ns: u64) -> f64 {
        self.sum(now_ns) as f64 * 1e9 / (self.part_ns * PARTS as u64) as f64
    }
}

/// A part of samples.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    number: u64,
    count: u64,
    sum: f64,
    least: u64,
    most: u64,
    first: u64,
    last: u64,
}

/// Samples of a value.
#[derive(Clone, Debug)]
pub struct Samples {
    part_ns: u64,
    parts: [Part; PARTS + 1],
}

impl Samples {
    /// Samples of the last `window_ns`.
    pub fn new(window_ns: u64) -> Samples {
        Samples { part_ns: (window_ns / PARTS as u64).max(1), parts: [Part::default(); PARTS + 1] }
    }

    /// Takes a sample.
    pub fn add(&mut self, now_ns: u64, value: u64) {
        let number = part(now_ns, self.part_ns);
        let slot = &mut self.parts[(number % (PARTS as u64 + 1)) as usize];
        if slot.number != number || slot.count == 0 {
            *slot = Part { number, least: value, most: value, first: value, ..Part::default() };
        }
        slot.count += 1;
        slot.sum += value as f64;
        slot.least = slot.least.min(value);
        slot.most = slot.most.max(value);
        slot.last = value;
    }

    fn inside(&self, now_ns: u64) -> impl Iterator<Item = &Part> {
        let newest = part(now_ns, self.part_ns);
        let inside = move |part: &&Part| {
            part.count > 0 && part.number + PARTS as u64 > newest && part.number <= newest
        };
        self.parts.iter().filter(inside)
    }

    /// Their mean; nothing without samples.
    pub fn average(&self, now_ns: u64) -> Option<f64> {
        let (sum, count) =
            self.inside(now_ns).fold((0.0, 0), |all, part| (all.0 + part.sum, all.1 + part.count));
        (count > 0).then(|| sum / count as f64)
    }

    /// The least.
    pub fn least(&self, now_ns: u64) -> Option<u64> {
        self.inside(now_ns).map(|part| part.least).min()
    }

    /// The most.
    pub fn most(&self, now_ns: u64) -> Option<u64> {
        self.inside(now_ns).map(|part| part.most).max()
    }

    /// How much it grows a second: from the first sample to the last, over the window's parts between them.
    pub fn slope(&self, now_ns: u64) -> Option<f64> {
        let first = self.inside(now_ns).min_by_key(|part| part.number)?;
        let last = self.inside(now_ns).max_by_key(|part| part.number)?;
        let parts = last.number - first.number + 1;
        Some((last.last as f64 - first.first as f64) * 1e9 / (parts * self.part_ns) as f64)
    }
}
