//! Declarations of tools as templates read them. Keywords of a schema that are null, and null
//! descriptions and parameters of a function, are absent: templates would write `None` for them.
//! Everything else stays as its author wrote it.

use crate::json::{Json, JsonObject};

/// A declaration without its null keywords.
pub(crate) fn without_nulls(tool: &Json) -> Json {
    let Json::Object(tool) = tool else { return tool.clone() };
    let fields = tool.iter().map(|(key, value)| match (key.as_str(), value) {
        ("function", Json::Object(function)) => (key.clone(), Json::Object(of_function(function))),
        _ => (key.clone(), value.clone()),
    });
    Json::Object(fields.collect())
}

fn of_function(function: &JsonObject) -> JsonObject {
    let said = function.iter().filter(|(_, value)| **value != Json::Null);
    let fields = said.map(|(key, value)| match key.as_str() {
        "parameters" | "response" => (key.clone(), schema(value)),
        _ => (key.clone(), value.clone()),
    });
    fields.collect()
}

fn schema(value: &Json) -> Json {
    let object = match value {
        Json::Object(object) => object,
        Json::List(schemas) => return Json::List(schemas.iter().map(schema).collect()),
        other => return other.clone(),
    };
    let said = object.iter().filter(|(key, value)| **value != Json::Null || key.as_str() == "const");
    let fields = said.map(|(key, value)| {
        let value = match (key.as_str(), value) {
            // The keys of these are names, not keywords.
            (
                "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
                Json::Object(named),
            ) => Json::Object(named.iter().map(|(name, value)| (name.clone(), schema(value))).collect()),
            // These hold values, which may be null.
            ("const" | "default" | "enum" | "example" | "examples", value) => value.clone(),
            (_, value) => schema(value),
        };
        (key.clone(), value)
    });
    Json::Object(fields.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_keywords_go_and_null_values_stay() {
        let tool = r#"{"type":"function","note":null,"function":{"name":"f","description":null,"parameters":{
            "type":"object","title":null,"required":null,"properties":{
                "a":{"type":"string","description":null,"default":null,"enum":["x",null]},
                "b":null,"type":null,"c":{"anyOf":[{"type":null},null,true]},
                "d":{"const":null,"items":{"nullable":null,"items":{"title":null}}}}}}}"#;
        let wanted = r#"{"type":"function","note":null,"function":{"name":"f","parameters":{"type":"object",
            "properties":{"a":{"type":"string","enum":["x",null]},"b":null,"type":null,"c":{"anyOf":[{},null,true]},
            "d":{"const":null,"items":{"items":{}}}}}}}"#;
        assert_eq!(without_nulls(&Json::parse(tool).unwrap()), Json::parse(wanted).unwrap());
    }
}
