//! The time that templates see: a moment that stands still for the whole life of a run.
//!
//! Comes in: `now` of the config, or of the state. Goes out: dates by `strftime` formats. Why: a template that writes today's date would give
//! other tokens after midnight, and after a resume.

use minijinja::{Error as JinjaError, ErrorKind as JinjaKind};

use crate::error::{Error, ErrorKind, Result};

/// A moment, as the calendar says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// Days since 1970-01-01.
    days: i64,
    /// Seconds of the day.
    seconds: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl Clock {
    /// Parses `2026-01-31`, or `2026-01-31T12:30:00`.
    ///
    /// # Errors
    /// `Config` - it is no such date.
    pub fn parse(text: &str) -> Result<Clock> {
        let parse = || {
            let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00:00"));
            let mut date = date.split('-').map(|part| part.parse::<i64>().ok());
            let (year, month, day) = (date.next()??, date.next()??, date.next()??);
            let mut time = time.trim_end_matches('Z').split(':').map(|part| part.parse::<u32>().ok());
            let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
            let clock = Clock { days: days(year, month, day), seconds: hour * 3600 + minute * 60 + second };
            let valid = (1..=9999).contains(&year) && hour < 24 && minute < 60 && second < 60;
            (valid && clock.date() == (year, month, day)).then_some(clock)
        };
        parse().ok_or_else(|| {
            let detail = format!("now is {text:?}, expected a date as \"2026-01-31\" or \"2026-01-31T12:30:00\"");
            Error::new(ErrorKind::Config, detail)
        })
    }

    /// The moment that this machine says it is.
    pub fn now() -> Clock {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Clock::from_unix(since.as_secs())
    }

    /// The moment so many seconds after 1970 began.
    pub fn from_unix(seconds: u64) -> Clock {
        Clock { days: (seconds / 86400) as i64, seconds: (seconds % 86400) as u32 }
    }

    /// As [`Clock::parse`] takes it.
    pub fn to_text(self) -> String {
        let ((year, month, day), s) = (self.date(), self.seconds);
        format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
    }

    /// Year, month and day, in the Gregorian calendar.
    fn date(self) -> (i64, i64, i64) {
        // Years begin in March here, so that leap days come last.
        let z = self.days + 719_468;
        let era = z.div_euclid(146_097);
        let day_of_era = z.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        (year_of_era + era * 400 + i64::from(month <= 2), month, day)
    }

    /// `strftime` of Python, in the C locale.
    pub(super) fn format(self, format: &str) -> Result<String, JinjaError> {
        let (year, month, day) = self.date();
        let (hour, minute, second) = (self.seconds / 3600, self.seconds / 60 % 60, self.seconds % 60);
        let weekday = (self.days + 4).rem_euclid(7) as usize;
        let month_name = MONTHS[month as usize - 1];
        let half = match hour % 12 {
            0 => 12,
            hour => hour,
        };
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut code = chars.next();
            let bare = code == Some('-');
            if bare {
                code = chars.next();
            }
            let number =
                |number: i64, width: usize| if bare { number.to_string() } else { format!("{number:0width$}") };
            match code {
                Some('Y') => out += &number(year, 4),
                Some('y') => out += &number(year % 100, 2),
                Some('m') => out += &number(month, 2),
                Some('d') => out += &number(day, 2),
                Some('e') => out += &format!("{day:2}"),
                Some('H') => out += &number(hour.into(), 2),
                Some('I') => out += &number(half.into(), 2),
                Some('M') => out += &number(minute.into(), 2),
                Some('S') => out += &number(second.into(), 2),
                Some('f') => out += "000000",
                Some('p') => out += if hour < 12 { "AM" } else { "PM" },
                Some('j') => out += &number(self.days - days(year, 1, 1) + 1, 3),
                Some('B') => out += month_name,
                Some('b' | 'h') => out += &month_name[..3],
                Some('A') => out += DAYS[weekday],
                Some('a') => out += &DAYS[weekday][..3],
                Some('w') => out += &weekday.to_string(),
                Some('F') => out += &format!("{year:04}-{month:02}-{day:02}"),
                Some('T') => out += &format!("{hour:02}:{minute:02}:{second:02}"),
                Some('D') => out += &format!("{month:02}/{day:02}/{:02}", year % 100),
                Some('%') => out.push('%'),
                Some('z' | 'Z') => {}
                other => {
                    let detail = format!("strftime_now has no %{}", other.map_or(String::new(), String::from));
                    return Err(JinjaError::new(JinjaKind::InvalidOperation, detail));
                }
            }
        }
        Ok(out)
    }
}

/// Days from 1970-01-01 to a date.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = if month > 2 { month - 3 } else { month + 9 };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + (153 * month + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_as_strftime() {
        let check = |now: &str, format: &str, expected: &str| {
            assert_eq!(Clock::parse(now).expect("a date").format(format).expect("a format"), expected);
        };
        check("2026-01-02", "%d %b %Y, %A %j %-d %H", "02 Jan 2026, Friday 002 2 00");
        check("2024-02-29T13:05:09", "%B %y %I:%M:%S %p %a", "February 24 01:05:09 PM Thu");
        assert_eq!(Clock::from_unix(86400 * 365).to_text(), "1971-01-01T00:00:00");
        for wrong in ["2026-02-30", "now", "2026", "2026-01-01T25:00:00"] {
            assert!(Clock::parse(wrong).is_err(), "{wrong}");
        }
    }
}
