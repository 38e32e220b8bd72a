//! The settings of a GPU's allocator: PyTorch's variables and their text.

use plimsoll_alloc::Config;

use crate::error::{Error, Result};

/// The variables that PyTorch reads; the first that is set counts.
const VARIABLES: [&str; 2] = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];

/// The settings that the environment asks for; PyTorch's defaults where it asks for none.
pub(crate) fn from_env(device: &str) -> Result<Config> {
    let set = VARIABLES.iter().find_map(|name| Some((name, std::env::var(name).ok()?)));
    let Some((variable, text)) = set else { return Ok(Config::default()) };
    parse(&text).map_err(|error| Error::argument("cuda", format!("{device}: {variable}={text}: {error}")))
}

/// The settings of a text such as `expandable_segments:True,max_split_size_mb:128`.
pub(crate) fn parse(text: &str) -> std::result::Result<Config, String> {
    Config::parse(text).map(|parsed| parsed.config).map_err(|error| error.to_string())
}
