//! Windows of the day and week (the paper's temporal access control).

use super::error::PolicyError;
use jiff::tz::TimeZone;
use jiff::{Timestamp, civil::Weekday};
use serde::Deserialize;

const DAY_MINUTES: u32 = 24 * 60;

/// A window: from one time of day to another, on some days. One that ends before it begins goes on past midnight, and
/// belongs to the day on which it begins.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct WindowFile {
    /// `HH:MM`, included.
    pub from: String,
    /// `HH:MM`, excluded.
    pub to: String,
    /// Days on which it begins; all if there are none.
    #[serde(default)]
    pub days: Vec<Day>,
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Day {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

/// A window, compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    from_minute: u32,
    to_minute: u32,
    days: u8,
}

/// The minute of a local week: what windows are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Day, 0 for Monday.
    pub day: u32,
    /// Minute of the day.
    pub minute: u32,
    /// When the next minute begins, milliseconds since the Unix epoch.
    pub until_unix_ms: u64,
}

impl Moment {
    /// The moment of a time in a time zone.
    pub fn at(unix_ms: u64, zone: &TimeZone) -> Moment {
        let millis = i64::try_from(unix_ms).unwrap_or(i64::MAX);
        let local =
            Timestamp::from_millisecond(millis).unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(zone.clone());
        let day = match local.weekday() {
            Weekday::Monday => 0,
            Weekday::Tuesday => 1,
            Weekday::Wednesday => 2,
            Weekday::Thursday => 3,
            Weekday::Friday => 4,
            Weekday::Saturday => 5,
            Weekday::Sunday => 6,
        };
        let minute = u32::from(local.hour().unsigned_abs()) * 60 + u32::from(local.minute().unsigned_abs());
        Moment { day, minute, until_unix_ms: (unix_ms / 60_000 + 1) * 60_000 }
    }
}

impl Window {
    /// Checks and compiles a window.
    ///
    /// # Errors
    /// What is wrong.
    pub fn compile(file: &WindowFile) -> Result<Window, PolicyError> {
        let days = file.days.iter().fold(0u8, |set, day| set | 1 << *day as u8);
        Ok(Window {
            from_minute: minute_of_day(&file.from)?,
            to_minute: minute_of_day(&file.to)?,
            days: if days == 0 { 0x7f } else { days },
        })
    }

    /// True if the moment lies in it.
    pub fn holds(&self, moment: &Moment) -> bool {
        let today = self.days & 1 << moment.day != 0;
        if self.from_minute < self.to_minute {
            return today && (self.from_minute..self.to_minute).contains(&moment.minute);
        }
        let yesterday = self.days & 1 << ((moment.day + 6) % 7) != 0;
        today && moment.minute >= self.from_minute || yesterday && moment.minute < self.to_minute
    }
}

fn minute_of_day(text: &str) -> Result<u32, PolicyError> {
    let wrong = || PolicyError::TimeOfDay(text.to_string());
    let (hours, minutes) = text.split_once(':').ok_or_else(wrong)?;
    let (hours, minutes): (u32, u32) =
        (hours.parse().map_err(|_| wrong())?, minutes.parse().map_err(|_| wrong())?);
    let minute = hours * 60 + minutes;
    if minutes >= 60 || minute > DAY_MINUTES { Err(wrong()) } else { Ok(minute) }
}

/// The time zone of a name (`Europe/Berlin`); the system's if there is none.
///
/// # Errors
/// [`PolicyError::Zone`].
pub fn zone(name: Option<&str>) -> Result<TimeZone, PolicyError> {
    match name {
        None => Ok(TimeZone::system()),
        Some(name) => TimeZone::get(name).map_err(|_| PolicyError::Zone(name.to_string())),
    }
}

/// Reads a time such as `2026-11-21T18:00:00Z`, as milliseconds since the Unix epoch.
///
/// # Errors
/// [`PolicyError::Time`].
pub fn parse_unix_ms(text: &str) -> Result<u64, PolicyError> {
    let time: Result<Timestamp, _> = text.parse();
    time.ok()
        .and_then(|time| u64::try_from(time.as_millisecond()).ok())
        .ok_or_else(|| PolicyError::Time(text.to_string()))
}

#[cfg(test)]
mod tests;
