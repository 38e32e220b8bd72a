//! `nvidia-smi` inside a prediction: the folder that `predict` puts first on the path has a script of that name, which
//! calls this.

use clap::Args;
use plimsoll_standin::smi;

use crate::exit::{Answer, Exit, Failure};

#[derive(Args)]
pub(crate) struct SmiArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// What `nvidia-smi` prints with these arguments; the result is text for stdout.
pub(crate) fn run(args: &SmiArgs) -> Result<Answer, Failure> {
    let text = smi::answer(&args.arguments);
    text.map(Answer::from).map_err(|why| Failure::new(Exit::Usage, format!("nvidia-smi: {why}")))
}
