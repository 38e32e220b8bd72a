//! The labels of memory, and the owner of the current allocations of each thread.
//!
//! A label is a name, registered once ([`intern`]) and then passed as a number: the allocator stores it and never
//! reads it. Each thread has a stack of spans; memory that is allocated while a [`Span`] is open belongs to it. A
//! layer opens one in `forward` ([`Span::layer`]). The autograd engine opens the layer's span again for its
//! derivative. The data loader and the constructors of modules open one with a category ([`Span::of`]).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_alloc::Tag;
pub use plimsoll_alloc::{Category, LabelId};

use crate::caller::Entry;

/// The bytes that one owner held in one category at the peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The layer, parameter or operation; see the module.
    pub label: String,
    /// The purpose of the bytes.
    pub category: Category,
    /// Bytes of its blocks, including rounding.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// All names of the process, in the order of their registration. A number is never reused.
struct Names {
    texts: Vec<String>,
    ids: BTreeMap<String, LabelId>,
}

static NAMES: Mutex<Names> = Mutex::new(Names { texts: Vec::new(), ids: BTreeMap::new() });

fn names() -> MutexGuard<'static, Names> {
    // The table is consistent after every step of `intern`, so a panic elsewhere cannot have broken it.
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of a name; the same text always has the same number. Number 0 means "no name".
pub fn intern(text: &str) -> LabelId {
    if text.is_empty() {
        return LabelId(0);
    }
    let mut names = names();
    if let Some(&id) = names.ids.get(text) {
        return id;
    }
    names.texts.push(text.to_owned());
    let id = LabelId(u32::try_from(names.texts.len()).unwrap_or(u32::MAX));
    names.ids.insert(text.to_owned(), id);
    id
}

/// [`intern`] for a string literal: recent names of a thread are cached by their address.
pub(crate) fn intern_static(text: &'static str) -> LabelId {
    const PLACES: usize = 64;
    thread_local! {
        static RECENT: [Cell<(usize, usize, LabelId)>; PLACES] =
            const { [const { Cell::new((0, 0, LabelId(0))) }; PLACES] };
    }
    let (start, len) = (text.as_ptr().addr(), text.len());
    RECENT.with(|recent| {
        let place = &recent[(start ^ (start >> 6)) % PLACES];
        let (known_start, known_len, id) = place.get();
        if (known_start, known_len) == (start, len) {
            return id;
        }
        let id = intern(text);
        place.set((start, len, id));
        id
    })
}

/// The text of a label; empty for number 0.
pub fn text(id: LabelId) -> String {
    let at = (id.0 as usize).checked_sub(1);
    at.and_then(|at| names().texts.get(at).cloned()).unwrap_or_default()
}

/// The label of a layer's derivative: `conv2` becomes `conv2 backward`.
pub(crate) fn backward_of(id: LabelId) -> LabelId {
    if id == LabelId(0) { id } else { intern(&format!("{} backward", text(id))) }
}

thread_local! {
    static SPANS: RefCell<Vec<Tag>> = const { RefCell::new(Vec::new()) };
}

/// Until it is dropped, this thread's allocations belong to its label. Spans nest; the innermost one counts.
#[must_use = "a span ends when it is dropped"]
#[derive(Debug)]
pub struct Span {
    /// The number of spans that were open before this one.
    depth: usize,
    /// The caller of the layer. It belongs to this thread, so the guard cannot move to another thread.
    _entry: Entry,
}

impl Span {
    /// Opens the span of a layer, named by its path in the model. Its allocations are temporaries until something
    /// else (such as autograd) keeps them.
    ///
    /// In a `#[track_caller]` function, it is also an [`Entry`].
    #[track_caller]
    pub fn layer(label: LabelId) -> Span {
        Span::of(Category::Temporary, label)
    }

    /// Opens a span that puts all allocations into one category, such as the parameters of a model under
    /// construction.
    #[track_caller]
    pub fn of(category: Category, label: LabelId) -> Span {
        let depth = SPANS.with_borrow_mut(|stack| {
            stack.push(Tag { category, label });
            stack.len() - 1
        });
        Span { depth, _entry: Entry::here() }
    }
}

impl Span {
    /// Opens a span for a copy of bytes tagged `from`. Copies of lasting data (parameters, buffers, gradients,
    /// optimizer state, inputs) keep the category and owner. A copy of anything else is a temporary of the
    /// innermost span or, if none is open, of the original owner.
    #[track_caller]
    pub(crate) fn of_copy(from: Tag) -> Span {
        let open = SPANS.with_borrow(|stack| stack.last().copied());
        let tag = match from.category {
            Category::Temporary | Category::Activation | Category::Workspace => open
                .filter(|open| open.label != LabelId(0))
                .unwrap_or(Tag { category: Category::Temporary, ..from }),
            _ => from,
        };
        Span::of(tag.category, tag.label)
    }
}

impl Drop for Span {
    /// Ends this span and the spans inside it, in case one of them is dropped later.
    fn drop(&mut self) {
        SPANS.with_borrow_mut(|stack| stack.truncate(self.depth));
    }
}

/// The tag of the innermost span, or a temporary if none is open. If it has no name, the operation's name is used.
pub(crate) fn current(op: &'static str) -> Tag {
    let innermost = SPANS.with_borrow(|stack| stack.last().copied());
    match innermost.unwrap_or(Tag { category: Category::Temporary, label: LabelId(0) }) {
        Tag { category, label: LabelId(0) } => Tag { category, label: intern_static(op) },
        named => named,
    }
}

/// The label of the innermost span, if one is open.
pub(crate) fn current_layer() -> LabelId {
    // A tensor may be freed while its thread ends, after the spans are gone.
    let label = SPANS.try_with(|stack| stack.borrow().last().map(|tag| tag.label));
    label.ok().flatten().unwrap_or(LabelId(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_number() {
        let id = intern("test.conv1.weight");
        assert_eq!(id, intern("test.conv1.weight"));
        assert_eq!(text(id), "test.conv1.weight");
        assert_eq!((intern(""), text(LabelId(0))), (LabelId(0), String::new()));
    }

    #[test]
    fn the_innermost_span_counts() {
        let (a, b) = (intern("test.a"), intern("test.b"));
        let _outer = Span::layer(a);
        {
            let _inner = Span::of(Category::Parameter, b);
            assert_eq!(current("op"), Tag { category: Category::Parameter, label: b });
        }
        assert_eq!(current("op"), Tag { category: Category::Temporary, label: a });
    }

    #[test]
    fn a_span_dropped_early_ends_those_inside_it() {
        let outer = Span::layer(intern("test.a"));
        let inner = Span::layer(intern("test.b"));
        drop(outer);
        assert_eq!(current_layer(), LabelId(0));
        drop(inner);
        assert_eq!(current_layer(), LabelId(0));
    }
}
