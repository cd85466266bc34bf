//! What a person can tell the program instead of the model.

use std::path::PathBuf;

use crate::ask::Thinking;

/// A line that begins with a slash.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    Help,
    Exit,
    New,
    System(Option<String>),
    Thinking(Thinking),
    Tools(Option<PathBuf>),
    Set(Vec<String>),
    /// Back to the model's own.
    Unset(String),
    Retry,
    Undo,
    Save(PathBuf),
    Load(PathBuf),
    Info,
}

/// The commands, as `/help` shows them.
pub const HELP: &str = "\
/new                 begin a new conversation
/retry               have the last answer made again
/undo                take back the last thing said, with its answer
/system [TEXT]       set the instructions before the conversation, or take them away
/thinking on|off     whether the model thinks before it answers
/tools [FILE]        tools that the model may call (a JSON list), or none
/set NAME [VALUE]    how answers are made: temperature, top-k, top-p, min-p, max-tokens, seed, stop, ...;
                     without a value as the model says
/save FILE           write the conversation as JSON
/load FILE           go on with a conversation from a file
/info                the model, the settings, and the last answer's speed
/exit                leave (or Ctrl-D)

Ctrl-C stops an answer. A backslash at the end of a line, or \"\"\" before and after, makes several lines one.
A line that begins with two slashes is said with one.";

/// Reads a line; `None` if it is for the model. The error is for the person.
pub fn read(line: &str) -> Option<Result<Command, String>> {
    let line = line.trim();
    let rest = line.strip_prefix('/').filter(|rest| !rest.starts_with('/'))?;
    let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let argument = argument.trim();
    let given = (!argument.is_empty()).then(|| argument.to_owned());
    let file = || given.clone().map(PathBuf::from).ok_or_else(|| format!("/{name} wants a file's name"));
    Some(match name {
        "help" | "?" => Ok(Command::Help),
        "exit" | "quit" | "bye" => Ok(Command::Exit),
        "new" | "clear" | "reset" => Ok(Command::New),
        "system" => Ok(Command::System(given)),
        "thinking" | "think" => match argument {
            "on" => Ok(Command::Thinking(Thinking::On)),
            "off" => Ok(Command::Thinking(Thinking::Off)),
            _ => Err("/thinking wants on or off".into()),
        },
        "tools" => Ok(Command::Tools(given.map(PathBuf::from))),
        "set" => match argument.split_once([' ', '=']) {
            Some((name, value)) => {
                let name = name.trim().trim_start_matches('-').replace('_', "-");
                Ok(Command::Set(vec![format!("--{name}={}", value.trim())]))
            }
            None if argument.is_empty() => Err("/set wants a name and a value, such as /set temperature 0.7".into()),
            None => Ok(Command::Unset(argument.trim_start_matches('-').replace('_', "-"))),
        },
        "retry" => Ok(Command::Retry),
        "undo" => Ok(Command::Undo),
        "save" => file().map(Command::Save),
        "load" => file().map(Command::Load),
        "info" => Ok(Command::Info),
        _ => Err(format!("there is no command /{name}; /help shows those there are")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_one_slash_are_commands_and_all_others_are_said() {
        assert_eq!(read("hello / there"), None);
        assert_eq!(read("//etc is a path"), None);
        assert_eq!(read(" /thinking  on "), Some(Ok(Command::Thinking(Thinking::On))));
        assert_eq!(read("/system"), Some(Ok(Command::System(None))));
        assert_eq!(read("/system Be brief."), Some(Ok(Command::System(Some("Be brief.".into())))));
        assert_eq!(read("/set top_k 5"), Some(Ok(Command::Set(vec!["--top-k=5".into()]))));
        assert_eq!(read("/set top_k"), Some(Ok(Command::Unset("top-k".into()))));
        for (line, told) in [
            ("/thinking", "/thinking wants on or off"),
            ("/save", "/save wants a file's name"),
            ("/set", "/set wants a name and a value, such as /set temperature 0.7"),
            ("/dance", "there is no command /dance; /help shows those there are"),
        ] {
            assert_eq!(read(line), Some(Err(told.into())));
        }
    }
}
