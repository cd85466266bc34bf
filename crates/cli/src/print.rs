//! Numbers as people read them.

/// `1.5 GB`, in powers of ten.
pub fn bytes(bytes: f64) -> String {
    scaled(bytes, "B")
}

/// `1.5 G` and a unit, in powers of ten.
pub fn scaled(number: f64, unit: &str) -> String {
    let prefixes = ["", "k", "M", "G", "T", "P"];
    let mut scaled = number;
    let mut prefix = 0;
    while scaled.abs() >= 999.5 && prefix + 1 < prefixes.len() {
        scaled /= 1000.0;
        prefix += 1;
    }
    let digits = match scaled.abs() {
        _ if prefix == 0 => 0,
        size if size < 9.995 => 2,
        size if size < 99.95 => 1,
        _ => 0,
    };
    format!("{scaled:.digits$} {}{unit}", prefixes[prefix])
}

/// `1,234,567`
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits_or_so() {
        let shown = [0.0, 12.0, 999.4, 1000.0, 1_536_000.0, 17.04e9, 262_144.0].map(bytes);
        assert_eq!(shown, ["0 B", "12 B", "999 B", "1.00 kB", "1.54 MB", "17.0 GB", "262 kB"]);
        assert_eq!([0, 12, 1234, 1_234_567].map(grouped), ["0", "12", "1,234", "1,234,567"]);
    }
}
