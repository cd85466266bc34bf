//! The `markbase` command: the only place that names backends.

mod ask;
mod asking;
mod backends;
mod batch;
mod bench;
mod builtin;
mod check;
mod conversation;
mod error;
mod files;
mod inspect;
mod interrupt;
mod load;
mod logits;
mod parse;
mod plan;
mod print;
mod progress;
mod render;
mod run;
mod screen;
mod synth;
mod wire;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use error::Error;

/// Runs Gemma 4 from MLX files on every machine.
#[derive(Parser)]
#[command(
    name = "markbase",
    version,
    about,
    after_help = "Without --model, every command takes the small built-in model.\n\n\
                  Try:  markbase run \"Tell me a short story about a fox.\"\n       \
                  markbase chat\n       \
                  markbase run --model ~/models/gemma-4-E2B-it-4bit \"Why is the sky blue?\"\n       \
                  markbase inspect --model ~/models/gemma-4-E2B-it-4bit"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answer one prompt, or a file of them, and stop.
    Run(Box<run::Arguments>),
    /// Talk with the model.
    Chat(Box<conversation::Arguments>),
    /// Show the prompt that the model's template makes of a conversation.
    Render(render::Arguments),
    /// Take a model's reply apart: text, thought, tool calls.
    Parse(parse::Arguments),
    /// Write the logits of token ids to a safetensors file.
    Logits(logits::Arguments),
    /// Show every step of the model: what it reads, writes, moves and multiplies.
    Plan(plan::Arguments),
    /// Show what a checkpoint holds, what is wrong with it, and the memory it needs.
    Inspect(inspect::Arguments),
    /// Write a checkpoint of random weights, for measuring and for tests of loading.
    Synth(synth::Arguments),
    /// Measure speed, memory, and the share of what this machine can do.
    Bench(bench::Arguments),
    /// Compare a backend with the reference, step by step.
    Check(check::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Run(arguments) => run::run(*arguments),
        Command::Chat(arguments) => conversation::run(*arguments),
        Command::Render(arguments) => render::run(arguments),
        Command::Parse(arguments) => parse::run(arguments),
        Command::Logits(arguments) => logits::run(arguments),
        Command::Plan(arguments) => plan::run(arguments),
        Command::Inspect(arguments) => inspect::run(arguments),
        Command::Synth(arguments) => synth::run(arguments),
        Command::Bench(arguments) => bench::run(arguments),
        Command::Check(arguments) => check::run(arguments),
    };
    match result {
        Ok(code) => code,
        // A reader that went away (`| head`) is no failure to report.
        Err(Error::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("markbase: {}", screen::visible(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}
