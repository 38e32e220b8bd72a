//! `plimsoll checkpoint consolidate`: merges the weights that several ranks have saved into one file for other
//! programs.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use plimsoll::Bytes;
use plimsoll::serialize::{DistributedFiles, SerializeError, TensorSource};
use plimsoll_trace::render::words::counted;
use serde_json::json;

use crate::exit::{Exit, Failure};

/// The schema of the answer. Changes in meaning raise the version; new fields do not.
const SCHEMA: &str = "plimsoll.checkpoint/1";
/// The name that other programs look for.
const WEIGHTS: &str = "model.safetensors";

/// What to do with a checkpoint.
#[derive(Subcommand)]
pub(crate) enum What {
    /// Merge the weights that several ranks saved into one file, for `transformers` and other programs
    Consolidate(ConsolidateArgs),
}

#[derive(Args)]
#[command(after_help = "Example: plimsoll checkpoint consolidate run")]
pub(crate) struct ConsolidateArgs {
    /// The folder of `train --save` (its newest checkpoint is used), or the folder of one checkpoint
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// The file to write [default: model.safetensors in DIR]
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(short, long)]
    force: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `plimsoll checkpoint`. Returns the text for stdout.
pub(crate) fn run(what: &What) -> Result<String, Failure> {
    let What::Consolidate(args) = what;
    let path = args.output.clone().unwrap_or_else(|| args.folder.join(WEIGHTS));
    if path.exists() && !args.force {
        let message =
            format!("{} already exists: add --force to replace it, or name another file", path.display());
        return Err(Failure::new(Exit::Usage, message));
    }
    let files = DistributedFiles::open(&args.folder).map_err(|error| failure(&error))?;
    let parent = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let [to, from] = [parent, files.folder()].map(|folder| fs::canonicalize(folder).ok());
    if to.is_some() && to == from {
        let message = format!(
            "PyTorch would read {} as the file of one more rank: name a file in another folder with --output",
            path.display()
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    files.consolidate(&path).map_err(|error| failure(&error))?;
    let bytes = fs::metadata(&path).map_err(|why| Failure::new(Exit::Unreadable, why.to_string()))?.len();
    let (tensors, file, from) = (files.names().len(), path.display(), files.folder().display());
    if args.json {
        let fields = json!({
            "schema": SCHEMA,
            "file": file.to_string(),
            "from": from.to_string(),
            "tensors": tensors,
            "bytes": bytes,
        });
        return Ok(format!("{fields:#}"));
    }
    let tensors = counted(tensors as u64, "tensor");
    Ok(format!("{file} has the weights of {from}: {tensors}, {}", Bytes(bytes)))
}

fn failure(error: &SerializeError) -> Failure {
    Failure::new(Exit::Unreadable, error.to_string())
}
