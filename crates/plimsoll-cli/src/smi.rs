//! `nvidia-smi` inside a prediction: `predict` puts a folder first on the path whose `nvidia-smi` script calls this.

use clap::Args;
use plimsoll_standin::smi;

use crate::exit::{Answer, Exit, Failure};

#[derive(Args)]
pub(crate) struct SmiArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Imitates `nvidia-smi` with these arguments. Returns the text for stdout.
pub(crate) fn run(args: &SmiArgs) -> Result<Answer, Failure> {
    let text = smi::answer(&args.arguments);
    text.map(Answer::from).map_err(|why| Failure::new(Exit::Usage, format!("nvidia-smi: {why}")))
}
