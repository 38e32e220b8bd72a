//! `nvidia-smi` inside a prediction: the folder that `predict` puts first on the path has a script of that name, which
//! calls this.

use plimsoll_standin::smi;

use crate::exit::{Answer, Exit, Failure};

/// What `nvidia-smi` prints with these arguments; the result is text for stdout.
pub(crate) fn run(arguments: &[String]) -> Result<Answer, Failure> {
    let text = smi::answer(arguments);
    text.map(Answer::from).map_err(|why| Failure::new(Exit::Usage, format!("nvidia-smi: {why}")))
}
