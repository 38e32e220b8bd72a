//! Which sets of techniques are simulated, and in which order: [`search`].

use plimsoll_tensor::checkpoint::Budget;

use super::techniques::Joins;
use super::{FitOptions, Fitted, Simulated, Technique, Techniques};

/// A set of techniques that was simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tried {
    /// The set.
    pub techniques: Techniques,
    /// The job's memory and time with it. If it does not fit, they are those without a limit.
    pub takes: Simulated,
    /// Whether the job fits with it.
    pub fits: bool,
}

impl Tried {
    /// The seconds by which sets are compared: 1 % more for each technique, so that one that saves less time is not worth it.
    pub fn cost_s(&self) -> f64 {
        self.takes.seconds * (1.0 + 0.01 * self.techniques.iter().count() as f64)
    }
}

/// All sets that a search tried.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Searched {
    /// The sets: the fastest that fits first (by [`Tried::cost_s`]), then those that do not fit, the smallest first.
    pub tried: Vec<Tried>,
    /// The number of simulated runs.
    pub runs: u32,
}

impl Searched {
    /// The fastest set that fits.
    pub fn fitted(self) -> Option<Fitted> {
        let Tried { techniques, takes, .. } = *self.tried.first().filter(|tried| tried.fits)?;
        Some(Fitted { techniques, takes, runs: self.runs, tried: self.tried })
    }

    /// The set that needs the least memory.
    pub fn least(&self) -> Option<&Tried> {
        self.tried.iter().min_by_key(|tried| tried.takes.reserved_bytes)
    }
}

/// The most budgets that are tried for a set of other techniques.
const BUDGETS: u32 = 7;
/// Budgets are not distinguished further than this part of the limit.
const GRAIN: u64 = 256;
/// If nothing fits, these parts of the limit are tried as budgets, which may be less than [`Budget::Auto`] keeps.
const LAST: [f64; 3] = [0.12, 0.06, 0.03];

/// The search of [`fit`](super::fit) for runs of any kind. `run` returns the memory and time of the job with these techniques,
/// without a limit or within one. It returns `None` if the job needs more than the limit, or a budget is below what blocks
/// need.
///
/// It begins with the job as it is, which is the answer if it fits. Otherwise it extends the fastest set first. A set gets the
/// largest budget of activations with which it fits, and is extended by one technique at a time. Budgets and further techniques
/// only add time, so the search ends when no set is left that is faster than the fastest that fits. A technique that makes a set
/// neither smaller nor faster is not added to it.
///
/// ```
/// use plimsoll::checkpoint::Budget;
/// use plimsoll::fit::{FitOptions, Simulated, search};
/// // Blocks that keep 800 MiB; each 8 MiB less takes a percent more time. Everything else takes 400 MiB.
/// let found = search(800 << 20, &FitOptions::default(), |techniques, limit_bytes| {
///     let kept = match techniques.activations {
///         Some(Budget::Bytes(bytes)) => bytes.min(800 << 20),
///         Some(_) => 100 << 20,
///         None => 800 << 20,
///     };
///     let reserved_bytes = kept + (400 << 20);
///     let seconds = 1.0 + ((800 << 20) - kept) as f64 / (800 << 20) as f64;
///     let takes = Simulated { allocated_bytes: reserved_bytes, reserved_bytes, seconds, ..Simulated::default() };
///     let fits = limit_bytes.is_none_or(|limit| reserved_bytes <= limit);
///     Ok::<_, plimsoll::Error>(fits.then_some(takes))
/// })?;
/// assert!(found.runs < 10);
/// let takes = found.fitted().expect("400 MiB of activations fit").takes;
/// assert!(takes.reserved_bytes > 780 << 20 && takes.seconds < 1.53);
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// # Errors
/// The errors of `run`.
pub fn search<E>(
    limit_bytes: u64,
    options: &FitOptions,
    run: impl FnMut(&Techniques, Option<u64>) -> Result<Option<Simulated>, E>,
) -> Result<Searched, E> {
    let mut search = Search { limit_bytes, options, run, runs: 0, tried: Vec::new() };
    search.all(options.has_exact_parts)?;
    if search.best_cost_s().is_none() && !options.has_exact_parts {
        search.all(true)?;
    }
    let Search { mut tried, runs, .. } = search;
    tried.sort_by(|a, b| {
        let key = |it: &Tried| if it.fits { it.cost_s() } else { it.takes.reserved_bytes as f64 };
        b.fits.cmp(&a.fits).then(key(a).total_cmp(&key(b)))
    });
    Ok(Searched { tried, runs })
}

struct Search<'a, R> {
    limit_bytes: u64,
    options: &'a FitOptions,
    run: R,
    runs: u32,
    tried: Vec<Tried>,
}

/// A set without a budget of its own.
#[derive(Clone, Copy)]
struct Node {
    techniques: Techniques,
    whole: Tried,
    /// With the least activations, if that is known to matter.
    least: Tried,
    /// The place of the first technique of [`Joins::Later`] that may still be added.
    next: usize,
}

impl<E, R: FnMut(&Techniques, Option<u64>) -> Result<Option<Simulated>, E>> Search<'_, R> {
    /// Tries all sets that can be the fastest that fits.
    fn all(&mut self, accumulates: bool) -> Result<(), E> {
        let base = self.options.base;
        let Some(first) = self.tried(base)? else { return Ok(()) };
        if first.fits {
            return Ok(());
        }
        let mut bases = vec![base];
        for technique in Technique::that_join(Joins::First).filter(|it| self.options.adds(*it)) {
            bases.extend(bases.clone().into_iter().map(|set| set.with(technique)));
        }
        let mut open = Vec::new();
        for base in bases {
            open.extend(self.node(base, 0)?);
        }
        let mut closed: Vec<Node> = Vec::new();
        while let Some(node) = fastest(&mut open) {
            closed.push(node);
            if self.best_cost_s().is_some_and(|best| best <= node.whole.cost_s()) {
                break;
            }
            if node.whole.fits {
                continue; // anything more only adds time
            }
            self.budgets(&node)?;
            for (place, technique) in Technique::that_join(Joins::Later).enumerate().skip(node.next) {
                if (technique == Technique::Accumulate && !accumulates) || !self.options.adds(technique) {
                    continue;
                }
                let Some((techniques, next)) = self.extended(&node.techniques, technique, place) else {
                    continue;
                };
                let Some(child) = self.node(techniques, next)? else { continue };
                if child.is_worth_it(&node) {
                    open.push(child);
                }
            }
        }
        if self.best_cost_s().is_none() {
            self.last(&mut closed)?;
        }
        Ok(())
    }

    /// The set and one more technique, or more parts, with the place of the next technique; `None` if they conflict.
    fn extended(&self, set: &Techniques, technique: Technique, place: usize) -> Option<(Techniques, usize)> {
        if technique != Technique::Accumulate {
            let more = set.with(technique);
            return (!set.has(technique) && more.conflict().is_none()).then_some((more, place + 1));
        }
        let accumulate = (2 * set.accumulate).min(self.options.most_parts);
        let more = Techniques { accumulate, ..*set };
        (accumulate > set.accumulate && more.conflict().is_none()).then_some((more, place))
    }

    /// The set, simulated without a budget and, if it does not fit, with the least activations.
    fn node(&mut self, techniques: Techniques, next: usize) -> Result<Option<Node>, E> {
        let Some(whole) = self.tried(techniques)? else { return Ok(None) };
        let least = match whole.fits || !self.options.adds(Technique::Activations) {
            true => None,
            false => self.tried(techniques.with(Technique::Activations))?,
        };
        Ok(Some(Node { techniques, whole, least: least.unwrap_or(whole), next }))
    }

    /// Looks for the largest budget with which a set fits: it recomputes the least.
    fn budgets(&mut self, node: &Node) -> Result<(), E> {
        if !node.least.fits || !self.options.adds(Technique::Activations) {
            return Ok(());
        }
        let (limit, grain) = (self.limit_bytes, self.limit_bytes / GRAIN);
        let (mut low, mut peak, mut high) = (0, node.least.takes.reserved_bytes, limit);
        // A budget of that many bytes more needs at most that many bytes more.
        let mut budget = limit - peak;
        for _ in 0..BUDGETS {
            budget = whole_mib(budget, grain);
            if budget <= low || budget >= high || high - low <= grain {
                break;
            }
            let with = Techniques { activations: Some(Budget::Bytes(budget)), ..node.techniques };
            budget = match self.tried(with)? {
                Some(Tried { takes, fits: true, .. }) => {
                    let (added, grown) = (budget - low, takes.reserved_bytes.saturating_sub(peak));
                    (low, peak) = (budget, takes.reserved_bytes);
                    let room = limit - peak;
                    let is_used = room > grain && 2 * grown >= added && room < high - low;
                    if is_used { low + room } else { low.midpoint(high) }
                }
                Some(_) => {
                    high = budget;
                    low.midpoint(high)
                }
                None => {
                    low = budget; // less than blocks need
                    low.midpoint(high)
                }
            };
        }
        Ok(())
    }

    /// Smaller budgets than the usual ones, for the sets that need the least memory.
    fn last(&mut self, closed: &mut [Node]) -> Result<(), E> {
        if !self.options.adds(Technique::Activations) {
            return Ok(());
        }
        closed.sort_by_key(|node| node.least.takes.reserved_bytes);
        for node in closed.iter().take(LAST.len()) {
            for part in LAST {
                let budget = whole_mib((self.limit_bytes as f64 * part) as u64, self.limit_bytes / GRAIN);
                let with = Techniques { activations: Some(Budget::Bytes(budget)), ..node.techniques };
                if self.tried(with)?.is_some_and(|tried| tried.fits) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Simulates a set, unless that has been done: without a limit and, if it reserves more than it uses, within it.
    fn tried(&mut self, techniques: Techniques) -> Result<Option<Tried>, E> {
        if let Some(known) = self.tried.iter().find(|known| known.techniques == techniques) {
            return Ok(Some(*known));
        }
        self.runs += 1;
        let Some(takes) = (self.run)(&techniques, None)? else { return Ok(None) };
        let mut tried = Tried { techniques, takes, fits: takes.reserved_bytes <= self.limit_bytes };
        // The allocator returns cached memory when it runs out.
        if !tried.fits && takes.allocated_bytes <= self.limit_bytes {
            self.runs += 1;
            if let Some(takes) = (self.run)(&techniques, Some(self.limit_bytes))? {
                tried = Tried { techniques, takes, fits: true };
            }
        }
        self.tried.push(tried);
        Ok(Some(tried))
    }

    /// The cost of the fastest set that fits.
    fn best_cost_s(&self) -> Option<f64> {
        self.tried.iter().filter(|tried| tried.fits).map(Tried::cost_s).min_by(f64::total_cmp)
    }
}

impl Node {
    /// Whether an extended set is smaller or faster than the one that it extends.
    fn is_worth_it(&self, parent: &Node) -> bool {
        let is_smaller =
            |own: &Tried, other: &Tried| own.takes.reserved_bytes < other.takes.reserved_bytes || own.fits;
        is_smaller(&self.whole, &parent.whole)
            || is_smaller(&self.least, &parent.least)
            || self.whole.cost_s() < parent.whole.cost_s()
    }
}

/// Takes the fastest node.
fn fastest(open: &mut Vec<Node>) -> Option<Node> {
    let cost_s = |place: &usize| open[*place].whole.cost_s();
    let place = (0..open.len()).min_by(|a, b| cost_s(a).total_cmp(&cost_s(b)))?;
    Some(open.remove(place))
}

/// Whole MiB, unless that would be too coarse.
fn whole_mib(bytes: u64, grain: u64) -> u64 {
    if grain < 1 << 20 { bytes } else { bytes >> 20 << 20 }
}
