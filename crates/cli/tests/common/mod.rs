//! Runs the built command as a person does.

#![allow(dead_code, reason = "each test file takes what it needs")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The command with arguments, finished.
pub fn markbase(arguments: &[&str]) -> Output {
    // Help is wrapped to the width of a terminal, which tests do not have.
    let mut command = Command::new(env!("CARGO_BIN_EXE_markbase"));
    command.args(arguments).env_remove("COLUMNS").output().expect("the command starts")
}

/// Standard output of a command that succeeds.
pub fn succeeds(arguments: &[&str]) -> String {
    let output = markbase(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("output is text")
}

/// The one sentence of a command that fails, without its prefix.
pub fn fails(arguments: &[&str]) -> String {
    let output = markbase(arguments);
    let errors = String::from_utf8(output.stderr).expect("errors are text");
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{arguments:?} prints no result");
    let line = errors.lines().find(|line| !line.contains("warning:")).unwrap_or_default();
    line.strip_prefix("markbase: ").unwrap_or_else(|| panic!("{arguments:?}: {errors}")).to_owned()
}

/// The folder of the built-in model.
pub fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nano-e-4bit")
}

/// A copy of the built-in model that a test may spoil.
pub fn copy_of_model(into: &Path) -> PathBuf {
    let folder = into.join("model");
    std::fs::create_dir(&folder).expect("a new folder");
    for entry in std::fs::read_dir(model()).expect("the model is part of the project") {
        let path = entry.expect("a file").path();
        std::fs::copy(&path, folder.join(path.file_name().expect("a name"))).expect("a copy");
    }
    folder
}
