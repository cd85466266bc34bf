//! Declarations of tools as templates read them. What is null in a function's declaration (its description, its
//! parameters) is absent: templates would write `None` for it. Everything else stays as its author wrote it.

use crate::json::Json;

/// A declaration whose function has no null fields.
pub(crate) fn without_nulls(tool: &Json) -> Json {
    let Json::Object(tool) = tool else { return tool.clone() };
    let fields = tool.iter().map(|(key, value)| {
        let value = match (key.as_str(), value) {
            ("function", Json::Object(function)) => {
                let said = function.iter().filter(|(_, value)| **value != Json::Null);
                Json::Object(said.map(|(key, value)| (key.clone(), value.clone())).collect())
            }
            _ => value.clone(),
        };
        (key.clone(), value)
    });
    Json::Object(fields.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_fields_of_a_function_go_and_its_schema_stays() {
        let tool = r#"{"type":"function","note":null,"function":{"name":"f","description":null,"parameters":{
            "type":"object","required":null,"properties":{"a":{"type":"string","default":null,"enum":["x",null]}}}}}"#;
        let wanted = r#"{"type":"function","note":null,"function":{"name":"f","parameters":{
            "type":"object","required":null,"properties":{"a":{"type":"string","default":null,"enum":["x",null]}}}}}"#;
        assert_eq!(without_nulls(&Json::parse(tool).unwrap()), Json::parse(wanted).unwrap());
    }
}
