//! The source of a template before it is compiled: what the engine does not know, or does without bounds,
//! is spelled in another way.

use minijinja::Error;
use minijinja::machinery::{Span, Token, tokenize};
use minijinja::syntax::SyntaxConfig;

/// Longer templates are refused. (The longest official one has 19 kB.)
pub(crate) const MAX_SOURCE_BYTES: usize = 128 << 10;

/// The filter that refuses values nested without end; a name that no template has.
pub(crate) const DEPTH_GUARD: &str = "__bounded_depth";

/// The filter that makes a text the list of its letters; a name that no template has.
pub(crate) const LETTERS: &str = "__letters";

/// The source as it is compiled.
///
/// - `{% generation %}` only tells training which tokens are the model's: its body is rendered as is.
/// - Only values that are set can grow deeper than the stack: in a namespace from one round of a loop
///   to the next (`{% set ns.x = [ns.x] %}`), elsewhere from one line to the next. Those are looked at
///   when they are set.
/// - Loops over texts do not know their last letter; over lists of letters they do.
pub(crate) fn prepare(source: &str, syntax: &SyntaxConfig) -> Result<String, Error> {
    let tokens: Vec<_> = tokenize(source, false, syntax.clone()).collect::<Result<_, _>>()?;
    let mut prepared = String::with_capacity(source.len());
    let mut done = 0;
    let mut put = |from: u32, to: u32, text: &str| {
        prepared.push_str(source.get(done..from as usize).unwrap_or_default());
        prepared.push_str(text);
        done = to as usize;
    };
    let mut rest = tokens.as_slice();
    while let Some(((first, _), after)) = rest.split_first() {
        rest = after;
        let Token::BlockStart = first else { continue };
        let end = rest.iter().position(|(token, _)| matches!(token, Token::BlockEnd));
        let (block, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after;
        match block {
            [(Token::Ident("generation"), span), ..] => {
                put(span.start_offset, span.end_offset, "if true");
            }
            [(Token::Ident("endgeneration"), span), ..] => {
                put(span.start_offset, span.end_offset, "endif");
            }
            [(Token::Ident("for"), _), rest @ ..] => {
                let Some(from) = rest.iter().position(|(token, _)| matches!(token, Token::Ident("in"))) else {
                    continue;
                };
                let (start, items) = (rest[from].1.end_offset, &rest[from + 1..]);
                let Some((_, last)) = items[..end_of_items(items)].last() else { continue };
                put(start, start, "(");
                put(last.end_offset, last.end_offset, &format!(")|{LETTERS}"));
            }
            [(Token::Ident("set"), _), target @ ..] => {
                let assign = target.iter().position(|(token, _)| matches!(token, Token::Assign));
                let (Some(assign), Some((_, last))) = (assign, target.last()) else { continue };
                let attribute = matches!(target.get(1), Some((Token::Dot, _)));
                let value = &target[assign..];
                if attribute || value.windows(2).any(|pair| nests([&pair[0].0, &pair[1].0])) {
                    put(value[0].1.end_offset, value[0].1.end_offset, "(");
                    put(last.end_offset, last.end_offset, &format!(")|{DEPTH_GUARD}"));
                }
            }
            _ => {}
        }
    }
    put(source.len() as u32, source.len() as u32, "");
    Ok(prepared)
}

/// How many tokens after `in` are what a loop goes over: up to its condition, or to `recursive`.
fn end_of_items(tokens: &[(Token, Span)]) -> usize {
    let mut depth = 0_usize;
    let end = tokens.iter().position(|(token, _)| {
        match token {
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => depth += 1,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && matches!(token, Token::Ident("if" | "recursive"))
    });
    end.unwrap_or(tokens.len())
}

/// Whether the second of two tokens makes a value of others: a list, a map, a tuple.
fn nests([before, token]: [&Token; 2]) -> bool {
    let value_before =
        matches!(before, Token::Ident(_) | Token::BracketClose | Token::ParenClose | Token::Str(_) | Token::String(_));
    match token {
        // After a value it is a subscript.
        Token::BracketOpen => {
            !value_before || matches!(before, Token::Ident("in" | "else" | "or" | "and" | "if" | "not"))
        }
        Token::BraceOpen | Token::Comma => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(source: &str) -> String {
        prepare(source, &SyntaxConfig::default()).unwrap()
    }

    #[test]
    fn values_in_namespaces_and_values_made_of_others_are_guarded() {
        for (source, wanted) in [
            ("{%- set ns.x = 1 -%}", "{%- set ns.x =( 1)|__bounded_depth -%}"),
            ("{% set x = ['%}'] %}", "{% set x =( ['%}'])|__bounded_depth %}"),
            ("{% set x = y or [z] %}", "{% set x =( y or [z])|__bounded_depth %}"),
            ("{% set x = y, z %}", "{% set x =( y, z)|__bounded_depth %}"),
            ("{% set x = y[1:]['a'] %}", "{% set x = y[1:]['a'] %}"),
            ("{% set x = f(a=1) %}", "{% set x = f(a=1) %}"),
            ("{% set x %}[1]{% endset %}", "{% set x %}[1]{% endset %}"),
            ("{{ set(x = [1]) }}", "{{ set(x = [1]) }}"),
        ] {
            assert_eq!(prepared(source), wanted);
        }
    }

    #[test]
    fn loops_go_over_the_letters_of_texts() {
        for (source, wanted) in [
            ("{%- for x in a -%}", "{%- for x in( a)|__letters -%}"),
            ("{% for k, v in a.items() if k in b %}", "{% for k, v in( a.items())|__letters if k in b %}"),
            ("{% for x in (a if b else c) recursive %}", "{% for x in( (a if b else c))|__letters recursive %}"),
            ("{% for x in a['if'] + [b] | sort %}", "{% for x in( a['if'] + [b] | sort)|__letters %}"),
            ("{% for x in %}", "{% for x in %}"),
            ("{% for x %}", "{% for x %}"),
        ] {
            assert_eq!(prepared(source), wanted);
        }
    }

    #[test]
    fn generation_tags_are_plain_blocks() {
        assert_eq!(
            prepared("{%- generation +%}{{ generation }}{% endgeneration -%} {% generation"),
            "{%- if true +%}{{ generation }}{% endif -%} {% if true"
        );
    }
}
