//! `markbase synth`: a checkpoint of random weights.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::error::Error;

#[derive(Args)]
pub struct Arguments {
    /// e2b, e4b, 12b, 26b-a4b or 31b.
    size: String,
    /// A folder that does not exist yet.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Runs the command.
pub fn run(_arguments: Arguments) -> Result<ExitCode, Error> {
    Ok(ExitCode::SUCCESS)
}
