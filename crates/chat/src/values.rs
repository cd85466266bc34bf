//! JSON as the values of the template engine, with the numbers that Python's `json.loads` makes of it:
//! integers of any size keep their digits, floats are the nearest doubles or infinite.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr, Value};

use crate::json::{Json, Number};

/// The value that a template sees.
pub(crate) fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(written) => number(written),
        Json::Text(text) => Value::from(text.as_str()),
        Json::List(items) => Value::from(items.iter().map(value).collect::<Vec<_>>()),
        Json::Object(object) => Value::from_pairs(object.iter().map(|(key, item)| (key.as_str(), value(item)))),
    }
}

fn number(written: &Number) -> Value {
    let text = written.as_str();
    if text.contains(['.', 'e', 'E']) {
        // Beyond the largest double it is infinite, in Python too.
        return Value::from(text.parse::<f64>().unwrap_or(f64::NAN));
    }
    if let Ok(small) = text.parse::<i64>() {
        return Value::from(small);
    }
    match text.parse::<i128>() {
        Ok(large) => Value::from(large),
        Err(_) => Value::from_object(BigInteger(text.to_owned())),
    }
}

/// An integer longer than the engine's own. It prints and counts as a number, and does not calculate.
#[derive(Debug)]
pub(crate) struct BigInteger(String);

impl BigInteger {
    /// Whether a value is one.
    pub fn is(value: &Value) -> bool {
        value.downcast_object_ref::<BigInteger>().is_some()
    }
}

impl Object for BigInteger {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::{self, JsonStyle};

    #[test]
    fn numbers_print_as_python_prints_what_it_loads() {
        for (written, printed) in [
            ("12345678901234567890", "12345678901234567890"),
            ("-170141183460469231731687303715884105728", "-170141183460469231731687303715884105728"),
            ("170141183460469231731687303715884105728", "170141183460469231731687303715884105728"),
            ("-0", "0"),
            ("-0.0", "-0.0"),
            ("1E2", "100.0"),
            ("1e-5", "1e-05"),
            ("1.0", "1.0"),
            ("0.30000000000000004", "0.30000000000000004"),
        ] {
            let value = value(&Json::parse(written).unwrap());
            assert_eq!(python::str(&value).unwrap(), printed);
            assert_eq!(JsonStyle::default().dumps(&value).unwrap(), printed);
        }
        let infinite = value(&Json::parse("[1e400, -1e400]").unwrap());
        assert_eq!(python::str(&infinite).unwrap(), "[inf, -inf]");
        assert_eq!(JsonStyle::default().dumps(&infinite).unwrap(), "[Infinity, -Infinity]");
    }
}
