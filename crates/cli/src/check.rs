use crate::error::Error;
use std::process::ExitCode;
#[derive(clap::Args)]
pub struct Arguments {}
pub fn run(_arguments: Arguments) -> Result<ExitCode, Error> {
    Ok(ExitCode::SUCCESS)
}
