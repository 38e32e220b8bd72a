//! The settings of a GPU's allocator, in the variables and the format of PyTorch.

use plimsoll_alloc::Config;

use crate::error::{Error, Result};

/// The environment variables that PyTorch reads; the first one that is set counts.
const VARIABLES: [&str; 2] = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];

/// The settings from the environment; PyTorch's defaults if no variable is set.
pub(crate) fn from_env(device: &str) -> Result<Config> {
    let set = VARIABLES.iter().find_map(|name| Some((name, std::env::var(name).ok()?)));
    let Some((variable, text)) = set else { return Ok(Config::default()) };
    parse(&text).map_err(|error| Error::argument("cuda", format!("{device}: {variable}={text}: {error}")))
}

/// Parses settings such as `expandable_segments:True,max_split_size_mb:128`.
pub(crate) fn parse(text: &str) -> std::result::Result<Config, String> {
    Config::parse(text).map(|parsed| parsed.config).map_err(|error| error.to_string())
}
