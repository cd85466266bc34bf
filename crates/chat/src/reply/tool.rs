//! What is declared of a tool, as far as its calls need it.

use crate::json::{Json, JsonObject};

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredTool {
    /// Its name.
    pub name: String,
    /// Its parameters, in the order of the declaration.
    pub parameters: Vec<DeclaredParameter>,
}

/// A parameter of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredParameter {
    /// Its name.
    pub name: String,
    /// Its JSON type in lower case, as `string`, if the declaration names exactly one besides `null`.
    pub json_type: Option<String>,
}

impl DeclaredTool {
    /// Reads `{"type": "function", "function": {"name": .., "parameters": {"properties": {..}}}}`, or the inner
    /// object alone. `None` without a name.
    pub fn read(tool: &Json) -> Option<DeclaredTool> {
        let function = tool.get("function").unwrap_or(tool);
        let name = function.get("name")?.as_str()?.to_owned();
        let properties = match function.get("parameters").and_then(|schema| schema.get("properties")) {
            Some(Json::Object(properties)) => Some(properties),
            _ => None,
        };
        let parameters = properties.into_iter().flatten();
        let parameters =
            parameters.map(|(name, schema)| DeclaredParameter { name: name.clone(), json_type: json_type(schema) });
        Some(DeclaredTool { name, parameters: parameters.collect() })
    }
}

impl DeclaredParameter {
    /// Whether its values are texts.
    pub fn is_text(&self) -> bool {
        self.json_type.as_deref() == Some("string")
    }
}

fn json_type(schema: &Json) -> Option<String> {
    let named = match schema.get("type")? {
        Json::Text(name) => vec![name.as_str()],
        Json::List(names) => names.iter().filter_map(Json::as_str).collect(),
        _ => vec![],
    };
    let mut named = named.into_iter().filter(|name| !name.eq_ignore_ascii_case("null"));
    let only = named.next()?.to_ascii_lowercase();
    named.next().is_none().then_some(only)
}

/// The tool that a written name means: the one of that name; else the one with the longest name that ends the
/// written one, after `:`, `.` or `/`, if no other tool's name ends so.
pub fn meant<'t>(tools: &'t [DeclaredTool], written: &str) -> Option<&'t DeclaredTool> {
    if let Some(exact) = tools.iter().find(|tool| tool.name == written) {
        return Some(exact);
    }
    let named = tools.iter().filter(|tool| ends_with(written, &tool.name));
    let meant = named.max_by_key(|tool| tool.name.len())?;
    tools.iter().all(|tool| !ends_with(&tool.name, &meant.name)).then_some(meant)
}

/// Whether a name ends with another one, after a separator.
fn ends_with(name: &str, end: &str) -> bool {
    name.strip_suffix(end).is_some_and(|before| before.ends_with([':', '.', '/']))
}

/// Numbers for parameters that are texts become the text of their digits. A text for a number stays a text:
/// the model set the delimiters.
pub fn refine(arguments: &mut JsonObject, tool: &DeclaredTool) {
    for parameter in tool.parameters.iter().filter(|parameter| parameter.is_text()) {
        if let Some(value) = arguments.get_mut(&parameter.name)
            && let Json::Number(number) = value
        {
            *value = Json::Text(number.as_str().to_owned());
        }
    }
}
