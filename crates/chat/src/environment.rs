//! The template engine made to answer like Jinja on Python as `transformers` sets it up: block trimming,
//! Python's way to print, and the filters, tests, methods and functions where the two engines differ.

use std::sync::Arc;

use minijinja::machinery::{CompiledTemplate, Instruction, get_compiled_template};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Tuple, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use crate::clock;
use crate::marks::Marks;
use crate::python::{self, JsonStyle};
use crate::source::{DEPTH_GUARD, LETTERS};
use crate::values::BigInteger;

/// The one template of an environment.
pub(crate) const TEMPLATE: &str = "chat_template";

/// Nested blocks, loops and macros (four each), the most that the engine allows: enough for arguments
/// nested about 40 deep, and within the 2 MiB of stack that a thread has.
const RECURSION: usize = 500;

/// Methods that values have, beside the ones that the engine's own objects bring.
const METHODS: &str = "capitalize changed copy count cycle endswith find format get index isalnum isalpha isascii isdigit \
    islower isnumeric isspace isupper items join keys lower lstrip partition removeprefix removesuffix \
    replace rfind rpartition rsplit rstrip split splitlines startswith strip title upper values";

/// A message that a template raised itself.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Raised(pub String);

/// An environment without a template.
pub(crate) fn new() -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_recursion_limit(RECURSION);
    env.set_debug(false);
    env.set_formatter(|out, _, value| {
        match value.as_str() {
            Some(text) => out.write_str(text)?,
            None => out.write_str(&python::str(value)?)?,
        }
        Ok(())
    });

    env.add_filter("upper", |value: &Value| Ok::<_, Error>(python::str(value)?.to_uppercase()));
    env.add_filter("lower", |value: &Value| Ok::<_, Error>(python::str(value)?.to_lowercase()));
    env.add_filter("capitalize", |value: &Value| Ok::<_, Error>(python::capitalize(&python::str(value)?)));
    env.add_filter("string", |value: &Value| python::str(value));
    env.add_filter("tojson", tojson);
    env.add_filter("sort", sort);
    env.add_filter(DEPTH_GUARD, |value: Value| {
        python::check_depth(&value)?;
        Ok::<_, Error>(value)
    });
    env.add_filter(LETTERS, |value: Value| match value.as_str() {
        Some(text) => text.chars().map(Value::from).collect(),
        None => value,
    });
    env.add_test("sequence", |value: &Value| {
        use ValueKind::{Map, Seq, String, Undefined};
        matches!(value.kind(), String | Seq | Map | Undefined)
    });
    env.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool) || BigInteger::is(value)
    });
    env.add_test("integer", |value: &Value| value.is_integer() || BigInteger::is(value));
    env.add_function("raise_exception", |message: &Value| {
        let raised = Raised(python::str(message)?);
        let error = Error::new(ErrorKind::InvalidOperation, raised.0.clone());
        Err::<Value, _>(error.with_source(raised))
    });
    env.add_function("strftime_now", |format: &str| {
        clock::strftime(format, clock::now()).map_err(|directive| {
            let why = format!("strftime_now: %{directive} is not supported");
            Error::new(ErrorKind::InvalidOperation, why)
        })
    });
    read_through(&mut env, None);
    Ok(env)
}

/// Sets what looks at single characters of texts: with marks, it sees the characters that they stand
/// for.
pub(crate) fn read_through(env: &mut Environment<'static>, marks: Option<Arc<Marks>>) {
    let text = TextRules { marks };
    let rules = text.clone();
    env.add_filter("trim", move |value: &Value, chars: Option<&str>| {
        let text = python::str(value)?;
        Ok::<_, Error>(rules.strip(&text, chars, Ends::Both).to_owned())
    });
    let rules = text.clone();
    env.add_filter("dictsort", move |map: &Value, args: Rest<Value>, options: Kwargs| {
        rules.dictsort(map, &args, &options)
    });
    env.set_unknown_method_callback(move |state, value, method, args| match (value.as_str(), args) {
        (Some(s), args) => text.string_method(state, s, value, method, args),
        (None, []) if method == "copy" && value.kind() == ValueKind::Map => Ok(value.clone()),
        _ => pycompat::unknown_method_callback(state, value, method, args),
    });
}

/// The ends of a text that are stripped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    Start,
    End,
    Both,
}

/// How characters of a text compare, under marks or without.
#[derive(Clone)]
struct TextRules {
    marks: Option<Arc<Marks>>,
}

impl TextRules {
    /// `str.strip(chars)`, `lstrip`, `rstrip`.
    fn strip<'s>(&self, text: &'s str, chars: Option<&str>, ends: Ends) -> &'s str {
        let stripped = |c: char| {
            let c = self.marks.as_ref().map_or(c, |marks| marks.original(c));
            chars.map_or_else(|| python::is_space(c), |chars| chars.contains(c))
        };
        let mut rest = text;
        while ends != Ends::End
            && let Some(c) = rest.chars().next()
        {
            let stray = self.marks.as_ref().is_some_and(|marks| marks.stray_at_start(rest));
            if !stripped(c) && !stray {
                break;
            }
            rest = &rest[c.len_utf8()..];
        }
        while ends != Ends::Start
            && let Some(c) = rest.chars().next_back()
        {
            let stray = self.marks.as_ref().is_some_and(|marks| marks.stray_at_end(rest));
            if !stripped(c) && !stray {
                break;
            }
            rest = &rest[..rest.len() - c.len_utf8()];
        }
        rest
    }

    /// Jinja's `dictsort`: pairs by key, or by value, texts without regard to case unless told.
    fn dictsort(&self, map: &Value, args: &[Value], options: &Kwargs) -> Result<Value, Error> {
        if map.kind() != ValueKind::Map {
            let why = format!("dictsort wants a mapping, found a value of kind {}", map.kind());
            return Err(Error::new(ErrorKind::InvalidOperation, why));
        }
        let option = |index: usize, name: &str| match args.get(index) {
            Some(value) => Ok(Some(value.clone())),
            None => options.get::<Option<Value>>(name),
        };
        let case_sensitive = option(0, "case_sensitive")?.is_some_and(|value| value.is_true());
        let by_value = option(1, "by")?.is_some_and(|by| by.as_str() == Some("value"));
        let reverse = option(2, "reverse")?.is_some_and(|value| value.is_true());
        options.assert_all_used()?;

        let mut pairs: Vec<(Value, Tuple)> = python::pairs(map)
            .map(|(key, value)| {
                let by = if by_value { &value } else { &key };
                let seen = match (by.as_str(), &self.marks) {
                    (Some(text), Some(marks)) => Value::from(marks.unmark(text)),
                    _ => by.clone(),
                };
                (sort_key(&seen, case_sensitive), Tuple::from([key, value]))
            })
            .collect();
        sort_pairs(&mut pairs, reverse);
        Ok(pairs.into_iter().map(|(_, pair)| Value::from(pair)).collect())
    }

    fn string_method(
        &self,
        state: &mut State,
        s: &str,
        value: &Value,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        let text_arg = |index: usize| args.get(index).and_then(|arg| arg.as_str());
        match (method, args.len()) {
            ("strip" | "lstrip" | "rstrip", 0 | 1) => {
                let given = args.first().filter(|chars| !chars.is_none());
                let chars = text_arg(0);
                if given.is_some() && chars.is_none() {
                    return Err(wants_text(method));
                }
                let ends = match method {
                    "lstrip" => Ends::Start,
                    "rstrip" => Ends::End,
                    _ => Ends::Both,
                };
                Ok(Value::from(self.strip(s, chars, ends)))
            }
            ("split", 0) => Ok(words(s)),
            ("split", 1) if args[0].is_none() => Ok(words(s)),
            ("rsplit", 1 | 2) => {
                let separator = text_arg(0).filter(|s| !s.is_empty());
                let separator = separator.ok_or_else(|| wants_text(method))?;
                let limit = args.get(1).and_then(Value::as_usize).unwrap_or(usize::MAX);
                let mut parts: Vec<&str> = s.rsplitn(limit.saturating_add(1), separator).collect();
                parts.reverse();
                Ok(Value::from_iter(parts))
            }
            ("partition" | "rpartition", 1) => {
                let separator = text_arg(0).filter(|s| !s.is_empty());
                let separator = separator.ok_or_else(|| wants_text(method))?;
                let parts = match method {
                    "partition" => s.split_once(separator).map(|(a, b)| [a, separator, b]),
                    _ => s.rsplit_once(separator).map(|(a, b)| [a, separator, b]),
                };
                let whole = if method == "partition" { [s, "", ""] } else { ["", "", s] };
                Ok(Value::from(Tuple::from(parts.unwrap_or(whole).map(Value::from))))
            }
            ("removeprefix" | "removesuffix", 1) => {
                let part = text_arg(0).ok_or_else(|| wants_text(method))?;
                let rest = match method {
                    "removeprefix" => s.strip_prefix(part),
                    _ => s.strip_suffix(part),
                };
                Ok(Value::from(rest.unwrap_or(s)))
            }
            ("index", 1) => match text_arg(0).and_then(|part| s.find(part)) {
                Some(at) => Ok(Value::from(s[..at].chars().count())),
                None => Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
            },
            ("capitalize", 0) => Ok(Value::from(python::capitalize(s))),
            ("title", 0) => Ok(Value::from(python::title(s))),
            ("splitlines", 0 | 1) => {
                let keeps_ends = args.first().is_some_and(Value::is_true);
                Ok(Value::from_iter(python::split_lines(s, keeps_ends)))
            }
            _ => pycompat::unknown_method_callback(state, value, method, args),
        }
    }
}

fn wants_text(method: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{method} wants a text as its argument"))
}

fn words(s: &str) -> Value {
    Value::from_iter(s.split(python::is_space).filter(|word| !word.is_empty()))
}

/// What a value is sorted by.
fn sort_key(value: &Value, case_sensitive: bool) -> Value {
    match value.as_str() {
        Some(text) if !case_sensitive => Value::from(text.to_lowercase()),
        _ => value.clone(),
    }
}

/// Sorts stably; reversed, equal ones keep their order too, as in Python.
fn sort_pairs<T>(pairs: &mut [(Value, T)], reverse: bool) {
    if reverse {
        pairs.sort_by(|(a, _), (b, _)| b.cmp(a));
    } else {
        pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
    }
}

/// Jinja's `sort`: `attribute` may be a number, a name, or a path of both, and several with commas.
fn sort(items: &Value, args: Rest<Value>, options: Kwargs) -> Result<Value, Error> {
    let option = |index: usize, name: &str| match args.get(index) {
        Some(value) => Ok(Some(value.clone())),
        None => options.get::<Option<Value>>(name),
    };
    let reverse = option(0, "reverse")?.is_some_and(|value| value.is_true());
    let case_sensitive = option(1, "case_sensitive")?.is_some_and(|value| value.is_true());
    let attribute = option(2, "attribute")?.filter(|value| !value.is_none());
    options.assert_all_used()?;

    let attribute = attribute.map(|value| python::str(&value)).transpose()?;
    let mut pairs = Vec::new();
    for item in items.try_iter()? {
        let key = match &attribute {
            None => sort_key(&item, case_sensitive),
            Some(paths) => {
                let keys = paths.split(',').map(|path| {
                    let found = path.split('.').try_fold(item.clone(), |value, step| match step.parse::<usize>() {
                        Ok(index) => value.get_item_by_index(index),
                        Err(_) => value.get_attr(step),
                    });
                    found.map(|value| sort_key(&value, case_sensitive))
                });
                Value::from(keys.collect::<Result<Vec<_>, _>>()?)
            }
        };
        pairs.push((key, item));
    }
    sort_pairs(&mut pairs, reverse);
    Ok(pairs.into_iter().map(|(_, item)| item).collect())
}

/// `tojson` as `transformers` replaces it: `json.dumps` that leaves letters as they are.
fn tojson(value: &Value, args: Rest<Value>, options: Kwargs) -> Result<String, Error> {
    let option = |index: usize, name: &str| match args.get(index) {
        Some(value) => Ok(Some(value.clone())),
        None => options.get::<Option<Value>>(name),
    };
    let ensure_ascii = option(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = match option(1, "indent")?.filter(|value| !value.is_none()) {
        None => None,
        Some(value) => Some(match (value.as_str(), value.as_usize()) {
            (Some(text), _) if text.len() <= 16 => text.to_owned(),
            (None, Some(width)) if width <= 16 => " ".repeat(width),
            _ => {
                let why = "tojson: indent wants at most 16 characters";
                return Err(Error::new(ErrorKind::InvalidOperation, why));
            }
        }),
    };
    let (mut item_separator, mut key_separator) = (None, None);
    if let Some(separators) = option(2, "separators")?.filter(|value| !value.is_none()) {
        item_separator = Some(python::str(&separators.get_item_by_index(0)?)?);
        key_separator = Some(python::str(&separators.get_item_by_index(1)?)?);
    }
    let sort_keys = option(3, "sort_keys")?.is_some_and(|value| value.is_true());
    options.assert_all_used()?;
    JsonStyle { ensure_ascii, indent, item_separator, key_separator, sort_keys }.dumps(value)
}

/// The first filter, test, method or function that the template names and nothing provides, in every
/// branch, taken or not.
pub(crate) fn unknown_name(env: &Environment<'static>) -> Result<Option<(&'static str, String)>, Error> {
    let template = env.get_template(TEMPLATE)?;
    let compiled: &CompiledTemplate<'_> = get_compiled_template(&template);
    let blocks = compiled.blocks.values();
    let all: Vec<&Instruction> = std::iter::once(&compiled.instructions)
        .chain(blocks)
        .flat_map(|code| (0..).map_while(|at| code.get(at)))
        .collect();
    let stored = |name: &str| {
        all.iter().any(|step| match step {
            Instruction::StoreLocal(local) => *local == name,
            Instruction::BuildMacro(local, ..) => *local == name,
            _ => false,
        })
    };
    let mut state = env.empty_state();
    for step in &all {
        let unknown = match step {
            Instruction::ApplyFilter(name, ..) => {
                let known = state.perform_test("filter", &[Value::from(*name)])?;
                (!known).then_some(("filter", *name))
            }
            Instruction::PerformTest(name, ..) => {
                let known = state.perform_test("test", &[Value::from(*name)])?;
                (!known).then_some(("test", *name))
            }
            Instruction::CallMethod(name, _) => {
                (!METHODS.split(' ').any(|known| known == *name)).then_some(("method", *name))
            }
            Instruction::CallFunction(name, _) => {
                let engine = ["loop", "caller", "super", "self"].contains(name);
                let known = engine || stored(name) || env.globals().any(|(global, _)| global == *name);
                (!known).then_some(("function", *name))
            }
            _ => None,
        };
        if let Some((what, name)) = unknown {
            return Ok(Some((what, name.to_owned())));
        }
    }
    Ok(None)
}
