//! Tests of windows.

use super::*;

fn window(from: &str, to: &str, days: &[Day]) -> Window {
    Window::compile(&WindowFile { from: from.into(), to: to.into(), days: days.to_vec() }).unwrap()
}

fn at(day: u32, minute: u32) -> Moment {
    Moment { day, minute, until_unix_ms: 0 }
}

#[test]
fn a_window_includes_its_beginning_and_not_its_end() {
    let day = window("09:00", "17:00", &[]);
    assert!(day.holds(&at(0, 540)) && day.holds(&at(6, 1019)));
    assert!(!day.holds(&at(0, 539)) && !day.holds(&at(0, 1020)));
}

#[test]
fn a_window_past_midnight_belongs_to_the_day_on_which_it_begins() {
    let night = window("17:00", "09:00", &[Day::Fri]);
    assert!(night.holds(&at(4, 1020)) && night.holds(&at(5, 539)));
    assert!(!night.holds(&at(5, 1020)) && !night.holds(&at(4, 539)) && !night.holds(&at(5, 540)));
    let sunday = window("23:00", "01:00", &[Day::Sun]);
    assert!(sunday.holds(&at(6, 1390)) && sunday.holds(&at(0, 30)) && !sunday.holds(&at(6, 30)));
}

#[test]
fn times_that_are_none_are_refused() {
    for text in ["24:01", "9", "09:60", "x:y", ""] {
        assert!(minute_of_day(text).unwrap_err().to_string().contains("HH:MM"), "{text}");
    }
    assert_eq!(minute_of_day("24:00").unwrap(), DAY_MINUTES);
}

#[test]
fn a_moment_is_local() {
    let berlin = zone(Some("Europe/Berlin")).unwrap();
    // A Saturday in winter, then one in summer: one and two hours ahead of UTC.
    let winter = Moment::at(parse_unix_ms("2026-01-03T22:59:30Z").unwrap(), &berlin);
    assert_eq!((winter.day, winter.minute), (5, 23 * 60 + 59));
    assert_eq!(winter.until_unix_ms, parse_unix_ms("2026-01-03T23:00:00Z").unwrap());
    let summer = Moment::at(parse_unix_ms("2026-07-04T22:00:00Z").unwrap(), &berlin);
    assert_eq!((summer.day, summer.minute), (6, 0));
    assert!(zone(Some("Moon/Base")).unwrap_err().to_string().contains("'Moon/Base'"));
}
