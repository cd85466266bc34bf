//! The folder appears whole or not at all, and nothing that was there is touched.

mod common;

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use common::{recipe, write_all};
use markbase_synth::{SynthError, TinyKind, write};

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_stopped_run_leaves_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("model");
    let stopped = write(&recipe(TinyKind::Dense, None), &out, &mut |progress| {
        assert_eq!(names(scratch.path()), [".model.0.partial"]);
        if progress.done_bytes * 2 > progress.total_bytes { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(stopped, Err(SynthError::Stopped { done_bytes, total_bytes }) if done_bytes < total_bytes));
    assert_eq!(names(scratch.path()), [] as [&str; 0]);
}

#[test]
fn a_stopped_run_leaves_an_empty_folder_empty() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("model");
    fs::create_dir(&out).unwrap();
    write(&recipe(TinyKind::Dense, None), &out, &mut |_| ControlFlow::Break(())).unwrap_err();
    assert_eq!(names(scratch.path()), ["model"]);
    assert_eq!(names(&out), [] as [&str; 0]);
}

#[test]
fn an_absent_and_an_empty_folder_are_filled() {
    let scratch = tempfile::tempdir().unwrap();
    let (absent, empty) = (scratch.path().join("new/er/model"), scratch.path().join("empty"));
    fs::create_dir(&empty).unwrap();
    let whole = [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    for out in [absent, empty] {
        write_all(&recipe(TinyKind::Dense, None), &out).unwrap();
        assert_eq!(names(&out), whole);
        assert_eq!(names(out.parent().unwrap()).iter().filter(|name| name.starts_with('.')).count(), 0);
    }
}

#[test]
fn a_folder_with_something_in_it_is_refused_and_not_touched() {
    let scratch = tempfile::tempdir().unwrap();
    fs::write(scratch.path().join("precious"), "kept").unwrap();
    let error = write_all(&recipe(TinyKind::Dense, None), scratch.path()).unwrap_err();
    assert!(matches!(error, SynthError::NotEmpty { .. }), "{error}");
    assert_eq!(names(scratch.path()), ["precious"]);
    let error = write_all(&recipe(TinyKind::Dense, None), &scratch.path().join("precious")).unwrap_err();
    assert!(matches!(error, SynthError::NotAFolder { .. }), "{error}");
    assert_eq!(fs::read(scratch.path().join("precious")).unwrap(), b"kept");
}

#[test]
fn a_folder_filled_by_another_while_this_one_was_written_is_kept() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("model");
    fs::create_dir(&out).unwrap();
    let result = write(&recipe(TinyKind::Dense, None), &out, &mut |_| {
        fs::write(out.join("precious"), "kept").unwrap();
        ControlFlow::Continue(())
    });
    assert!(matches!(result, Err(SynthError::Io { .. })), "{result:?}");
    assert_eq!(names(scratch.path()), ["model"]);
    assert_eq!(names(&out), ["precious"]);
}

#[test]
fn progress_rises_to_the_whole() {
    let scratch = tempfile::tempdir().unwrap();
    let mut last = 0;
    let mut total = 0;
    write(&recipe(TinyKind::PerLayer, None), &scratch.path().join("model"), &mut |progress| {
        assert!(progress.done_bytes > last, "{}", progress.tensor);
        (last, total) = (progress.done_bytes, progress.total_bytes);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(last, total);
}
