//! Workspaces that a library does not document: none, or by a model, as is wanted; either is told.

use crate::notice;
use crate::settings::Workspaces;

/// Bytes of a workspace that is not documented: by a model, or none.
pub(crate) fn asked(library: &str, model: impl FnOnce() -> u64) -> u64 {
    match Workspaces::wanted() {
        Workspaces::None => none(library),
        Workspaces::Model => {
            notice::assume(library, notice::MODELLED);
            model()
        }
    }
}

/// No workspace, of which there is no model.
pub(crate) fn none(library: &str) -> u64 {
    notice::assume(library, "is taken to need no workspace: on a card it needs some");
    0
}
