//! Tracks which parameters exist and which of them a module lists. A parameter that no module lists would silently be
//! neither trained nor saved.
//!
//! Each parameter has a record, [`Made`], which its clones share. Code that trains or saves tensors checks them here. A
//! record exists as long as a parameter refers to it, and does not keep a tensor alive.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use plimsoll_tensor::{Error, Result, Tensor};

use super::tensor_parallel::Part;

/// The record of a parameter: its properties other than the tensor.
#[derive(Debug)]
pub(super) struct Made {
    /// The tensor's id.
    id: usize,
    path: String,
    /// Whether a module lists the tensor among its members.
    listed: AtomicBool,
    /// If several ranks share a parameter: which part of it this is.
    part: OnceLock<Part>,
    /// The parameters made from the same root scope, if a scope made this one.
    model: Option<Arc<Model>>,
}

/// The parameters that are made from one root scope, in order.
#[derive(Debug, Default)]
pub(super) struct Model(Mutex<Vec<Weak<Made>>>);

/// The records of all parameters, by the ids of their tensors.
static ALL: Mutex<BTreeMap<usize, Weak<Made>>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Made {
    /// Returns the record of a tensor that is a parameter. A new record is added to `model`.
    pub(super) fn of(tensor: &Tensor, path: &str, model: Option<&Arc<Model>>, listed: bool) -> Arc<Made> {
        let mut all = lock(&ALL);
        if let Some(made) = all.get(&tensor.id()).and_then(Weak::upgrade) {
            return made;
        }
        let (path, listed, part) = (path.to_owned(), AtomicBool::new(listed), OnceLock::new());
        let made = Arc::new(Made { id: tensor.id(), path, listed, part, model: model.cloned() });
        all.insert(tensor.id(), Arc::downgrade(&made));
        drop(all);
        if let Some(model) = model {
            let mut notes = lock(&model.0);
            notes.retain(|note| note.strong_count() > 0);
            notes.push(Arc::downgrade(&made));
        }
        made
    }

    /// Returns the record of the tensor that replaces this record's tensor.
    pub(super) fn replaced_by(&self, tensor: &Tensor) -> Arc<Made> {
        let made = Made::of(tensor, &self.path, self.model.as_ref(), self.listed.load(Ordering::Relaxed));
        if let Some(part) = self.part.get() {
            made.set_part(part.clone());
        }
        made
    }

    pub(super) fn set_part(&self, part: Part) {
        // A parameter remains the same part as long as it exists.
        let _ = self.part.set(part);
    }

    pub(super) fn set_listed(&self) {
        self.listed.store(true, Ordering::Relaxed);
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let mut all = lock(&ALL);
        // A different tensor may have this id by now.
        if all.get(&self.id).is_some_and(|note| note.strong_count() == 0) {
            all.remove(&self.id);
        }
    }
}

fn note(tensor: &Tensor) -> Option<Arc<Made>> {
    lock(&ALL).get(&tensor.id()).and_then(Weak::upgrade)
}

/// Returns an error if one of these tensors belongs to a model with a parameter that no module lists.
///
/// # Errors
/// [`Error::Argument`] of `op`, which names the field.
pub(crate) fn check_listed<'a>(op: &'static str, tensors: impl Iterator<Item = &'a Tensor>) -> Result<()> {
    let mut models: Vec<Arc<Model>> = Vec::new();
    for model in tensors.filter_map(|tensor| note(tensor)?.model.clone()) {
        if !models.iter().any(|known| Arc::ptr_eq(known, &model)) {
            models.push(model);
        }
    }
    for model in models {
        // Done outside the lock, because this may drop the last handle to a record.
        let notes: Vec<Arc<Made>> = lock(&model.0).iter().filter_map(Weak::upgrade).collect();
        let is_listed = |made: &&Arc<Made>| made.listed.load(Ordering::Relaxed);
        let (listed, unlisted): (Vec<&Arc<Made>>, Vec<&Arc<Made>>) = notes.iter().partition(is_listed);
        if let Some(made) = unlisted.first() {
            let (owner, field) = field_of(&made.path, listed.iter().map(|made| made.path.as_str()));
            let owner = if owner.is_empty() { String::new() } else { format!(" of `{owner}`") };
            let message = format!(
                "the parameter `{}` is in no `members!`, so it would be neither trained nor saved: add the field `{field}` \
                 to the `members!`{owner}; if it belongs to another model, make that from its own Scope",
                made.path
            );
            return Err(Error::Argument { op, message });
        }
    }
    Ok(())
}

/// Returns an error if one of these tensors is part of a parameter that tensor-parallel ranks share.
///
/// # Errors
/// [`Error::Argument`] of `op`, which names the parameter.
pub(crate) fn check_whole<'a>(op: &'static str, tensors: impl Iterator<Item = &'a Tensor>) -> Result<()> {
    let part = tensors.filter_map(note).find(|made| made.part.get().is_some());
    part.map_or(Ok(()), |made| {
        let message =
            format!("each rank has only a part of {}, which `{op}` does not support yet", made.path);
        Err(Error::Argument { op, message })
    })
}

/// If this tensor is part of a parameter that tensor-parallel ranks share: which part; `None` if it is whole.
pub(crate) fn part_of(tensor: &Tensor) -> Option<Part> {
    note(tensor)?.part.get().cloned()
}

/// Finds the layer whose list lacks a path, and the missing field: the first name with which no listed path begins.
fn field_of<'a>(path: &'a str, listed: impl Iterator<Item = &'a str>) -> (&'a str, &'a str) {
    let begins = |listed: &str| {
        let same = path.split('.').zip(listed.split('.')).take_while(|(a, b)| a == b);
        same.map(|(name, _)| name.len() + 1).sum::<usize>()
    };
    let shared = listed.map(begins).max().unwrap_or(0).min(path.rfind('.').map_or(0, |dot| dot + 1));
    let field = path[shared..].split('.').next().unwrap_or(path);
    (path[..shared].trim_end_matches('.'), field)
}

/// Returns an error if one of these tensors has been replaced in its parameter by another tensor.
///
/// # Errors
/// [`Error::Argument`] of `op`, which names the parameter.
pub(crate) fn check_current<'a>(
    op: &'static str,
    mut tensors: impl Iterator<Item = &'a Tensor>,
) -> Result<()> {
    match tensors.find(|tensor| tensor.is_replaced() && note(tensor).is_none()) {
        None => Ok(()),
        Some(old) => {
            let message = format!(
                "the parameter {} got another tensor after this optimizer was made (the model was moved or converted): make \
                 the optimizer after that, from `parameters()`",
                old.label()
            );
            Err(Error::Argument { op, message })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_that_is_missing_is_the_first_name_that_no_listed_path_begins_with() {
        let of = |path, listed: &[&'static str]| field_of(path, listed.iter().copied());
        assert_eq!(of("head.weight", &["body.0.weight"]), ("", "head"));
        assert_eq!(of("scale", &["body.0.weight"]), ("", "scale"));
        assert_eq!(of("body.1.gate.weight", &["body.0.weight", "body.1.up.weight"]), ("body.1", "gate"));
        assert_eq!(of("fc.bias", &["fc.weight"]), ("fc", "bias"));
    }
}
