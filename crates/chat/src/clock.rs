//! The time for templates that print today's date, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

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
const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Seconds since 1970-01-01 now.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `strftime(format)` of the time `seconds` after 1970-01-01; `Err` holds a directive not known here.
pub(crate) fn strftime(format: &str, seconds: u64) -> Result<String, char> {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let (year, month, day, day_of_year) = date(days);
    let (month_name, weekday) = (MONTHS[month], WEEKDAYS[(days % 7) as usize]);
    let hour_of_12 = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        // "%-d" leaves the padding away.
        let (pad, directive) = match chars.next() {
            Some('-') => (false, chars.next()),
            other => (true, other),
        };
        let two = |number: u64| if pad { format!("{number:02}") } else { number.to_string() };
        out.push_str(&match directive {
            Some('Y') => year.to_string(),
            Some('y') => two(year % 100),
            Some('m') => two(month as u64 + 1),
            Some('d') => two(day),
            Some('e') => format!("{day:2}"),
            Some('j') if pad => format!("{day_of_year:03}"),
            Some('j') => day_of_year.to_string(),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('H') => two(hour),
            Some('I') => two(hour_of_12),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('F') => format!("{year}-{:02}-{day:02}", month + 1),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => return Err(other),
            None => return Err('%'),
        });
    }
    Ok(out)
}

/// Year, month from 0, day from 1, day of the year from 1, of a day counted from 1970-01-01.
fn date(mut days: u64) -> (u64, usize, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // 400 years always have the same length; the loops below then end soon for any input.
    let mut year = 1970 + days / 146_097 * 400;
    days %= 146_097;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let day_of_year = days + 1;
    let february = 28 + u64::from(leap(year));
    let mut month = 0;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1, day_of_year)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_print_as_in_python() {
        for (seconds, wanted) in [
            (0, "1970-01-01 Thursday January 001 12:00:00 AM"),
            (951_782_399, "2000-02-28 Monday February 059 11:59:59 PM"),
            (951_782_400, "2000-02-29 Tuesday February 060 12:00:00 AM"),
            (4_107_542_399, "2100-02-28 Sunday February 059 11:59:59 PM"),
            (4_107_542_400, "2100-03-01 Monday March 060 12:00:00 AM"),
            (1_798_761_599, "2026-12-31 Thursday December 365 11:59:59 PM"),
        ] {
            assert_eq!(strftime("%Y-%m-%d %A %B %j %I:%M:%S %p", seconds).unwrap(), wanted);
        }
        assert_eq!(strftime("%-d %b %y 100%%", 4 * 86_400).unwrap(), "5 Jan 70 100%");
        assert_eq!(strftime("%Q", 0), Err('Q'));
        assert_eq!(strftime("%", 0), Err('%'));
    }
}
