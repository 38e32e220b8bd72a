//! How tables are printed; shared by the verbs that print them.

use clap::Args;

use crate::bytes;

/// How tables are shown.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Shown {
    /// Rows of each table
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) rows: usize,
    /// Print sizes in bytes, not in MiB and GiB
    #[arg(long)]
    pub(crate) bytes: bool,
}

impl Shown {
    /// A size.
    pub(crate) fn size(self, bytes: u64) -> String {
        bytes::shown(bytes, self.bytes)
    }

    /// The change of a size.
    pub(crate) fn change(self, bytes: i128) -> String {
        bytes::change(bytes, self.bytes)
    }
}
