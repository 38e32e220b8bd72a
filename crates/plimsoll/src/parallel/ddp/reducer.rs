//! The work during a backward pass: as gradients arrive, they fill buckets, and full buckets are exchanged.
//!
//! The first pass creates the buckets in the order in which gradients arrive, and exchanges each as soon as it is full. Later
//! passes use the same buckets. Buckets are exchanged in a fixed order, which is the same on all ranks. A bucket that is full
//! waits until all earlier ones have been exchanged.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_tensor::autograd::queue_callback;
use plimsoll_tensor::{DType, Error, ProcessGroup, Result, Tensor};

use super::bucket::GradientBucket;
use super::{DdpOptions, NAME};
use crate::parallel::agree::{first_other, shown};
use crate::parallel::lanes::Passes;

/// The gradients of one model on one rank.
pub(super) struct Reducer {
    pub(super) group: ProcessGroup,
    options: DdpOptions,
    /// The parameters that require a gradient, with their names.
    pub(super) parameters: Vec<(String, Tensor)>,
    buffers: Vec<Tensor>,
    pub(super) buckets: Vec<GradientBucket>,
    /// The bucket and slot of each parameter.
    places: Vec<Option<(usize, usize)>>,
    /// Whether the first pass has finished, so that all buckets exist.
    is_built: bool,
    /// Whether passes exchange gradients. False inside `no_sync`.
    pub(super) syncs: bool,
    pass: Option<Pass>,
    /// If a batch is divided into lanes: which pass of the batch this is.
    passes: Option<Passes>,
}

/// The state of the running backward pass.
struct Pass {
    arrived: Vec<bool>,
    /// In the first pass, the parameters that have no bucket yet: by type, in the order in which their gradients arrived.
    waiting: Vec<(DType, Vec<usize>)>,
    /// The first bucket that has not been exchanged.
    next: usize,
    is_finished: bool,
}

/// A reducer that the hooks of its parameters share.
pub(super) type Shared = Arc<Mutex<Reducer>>;

pub(super) fn locked(reducer: &Shared) -> MutexGuard<'_, Reducer> {
    reducer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Resets the state of a failed pass when dropped.
struct Ends(Shared);

impl Drop for Ends {
    fn drop(&mut self) {
        let mut reducer = locked(&self.0);
        let is_finished = reducer.pass.take().is_some_and(|pass| pass.is_finished);
        if !reducer.is_built {
            reducer.buckets.clear();
            reducer.places.fill(None);
        }
        if let Some(passes) = &mut reducer.passes {
            passes.end(is_finished);
        }
        if !is_finished {
            reducer.buckets.iter_mut().for_each(|bucket| bucket.sums.clear());
        }
        reducer.buckets.iter_mut().for_each(|bucket| bucket.missing = bucket.slots.len());
    }
}

/// The hook of a parameter. It runs when the parameter's gradient is complete.
pub(super) fn arrived(shared: &Shared, parameter: usize) -> Result<()> {
    let mut reducer = locked(shared);
    if !reducer.syncs {
        return Ok(());
    }
    let is_first = reducer.pass.is_none();
    if is_first {
        let arrived = vec![false; reducer.parameters.len()];
        reducer.pass = Some(Pass { arrived, waiting: Vec::new(), next: 0, is_finished: false });
    }
    drop(reducer);
    if is_first {
        let ends = Ends(Arc::clone(shared));
        queue_callback(move || {
            let outcome = locked(&ends.0).finish();
            drop(ends);
            outcome
        })?;
    }
    locked(shared).arrived(parameter)
}

impl Reducer {
    pub(super) fn new(
        group: ProcessGroup,
        options: DdpOptions,
        parameters: Vec<(String, Tensor)>,
        buffers: Vec<Tensor>,
    ) -> Reducer {
        let places = vec![None; parameters.len()];
        let passes = options.reproducible.map(|reproducible| Passes::new(reproducible, &group));
        let (buckets, is_built, syncs, pass) = (Vec::new(), false, true, None);
        Reducer { group, options, parameters, buffers, buckets, places, is_built, syncs, pass, passes }
    }

    /// The names of a bucket's parameters.
    pub(super) fn names(&self, bucket: &GradientBucket) -> Vec<String> {
        bucket.slots.iter().map(|slot| self.parameters[slot.parameter].0.clone()).collect()
    }

    fn arrived(&mut self, parameter: usize) -> Result<()> {
        let Some(pass) = &mut self.pass else { return Ok(()) };
        pass.arrived[parameter] = true;
        if let Some((bucket, _)) = self.places[parameter] {
            let missing = &mut self.buckets[bucket].missing;
            *missing = missing.saturating_sub(1);
            return self.exchange_full();
        }
        if self.is_built {
            let name = &self.parameters[parameter].0;
            let message = format!(
                "{name} has a gradient now and had none in the first backward pass: set `find_unused_parameters` if the model \
                 does not always use all its parameters"
            );
            return Err(Error::autograd(NAME, message));
        }
        if self.options.find_unused_parameters {
            return Ok(()); // the buckets are created at the end of the pass
        }
        self.collect(parameter)?;
        self.exchange_full()
    }

    /// Adds a parameter to the next bucket of its type, and makes that bucket if it is full.
    fn collect(&mut self, parameter: usize) -> Result<()> {
        let limit = if self.buckets.is_empty() {
            self.options.first_bucket_bytes
        } else {
            self.options.bucket_cap_bytes
        };
        let Some(pass) = &mut self.pass else { return Ok(()) };
        let tensor = &self.parameters[parameter].1;
        let dtype = tensor.dtype();
        let at = pass.waiting.iter().position(|(other, _)| *other == dtype).unwrap_or_else(|| {
            pass.waiting.push((dtype, Vec::new()));
            pass.waiting.len() - 1
        });
        let size = |member: &usize| bytes_of(&self.parameters[*member].1);
        let bytes: u64 = pass.waiting[at].1.iter().map(size).sum();
        // A gradient with a bucket to itself must not delay the gradients that arrived before it.
        if bytes > 0 && bytes_of(tensor) >= limit {
            let earlier = std::mem::replace(&mut pass.waiting[at].1, vec![parameter]);
            self.make(&earlier)?;
            return self.make_waiting(at);
        }
        pass.waiting[at].1.push(parameter);
        if bytes + bytes_of(tensor) < limit { Ok(()) } else { self.make_waiting(at) }
    }

    /// Makes a bucket for the waiting gradients of one type.
    fn make_waiting(&mut self, at: usize) -> Result<()> {
        let Some(pass) = &mut self.pass else { return Ok(()) };
        let members = std::mem::take(&mut pass.waiting[at].1);
        self.make(&members)
    }

    /// Makes the last buckets, which are not full.
    fn make_rest(&mut self) -> Result<()> {
        let Some(pass) = &mut self.pass else { return Ok(()) };
        let waiting = std::mem::take(&mut pass.waiting);
        waiting
            .iter()
            .filter(|(_, members)| !members.is_empty())
            .try_for_each(|(_, members)| self.make(members))
    }

    /// Makes a bucket of these parameters.
    fn make(&mut self, members: &[usize]) -> Result<()> {
        let names: Vec<&str> = members.iter().map(|member| self.parameters[*member].0.as_str()).collect();
        let number = self.buckets.len();
        self.agree(&names, &format!("bucket {number}"), || {
            format!("bucket {number} has {} here", names.join(", "))
        })?;
        let bucket = GradientBucket::new(number, members, &self.parameters, &self.group)?;
        self.buckets.push(bucket);
        for (slot, &member) in members.iter().enumerate() {
            self.places[member] = Some((number, slot));
        }
        self.buckets[number].missing = 0;
        Ok(())
    }

    /// Exchanges the next buckets in order, up to the first that is not full.
    fn exchange_full(&mut self) -> Result<()> {
        let Some(pass) = &mut self.pass else { return Ok(()) };
        if self.options.find_unused_parameters {
            return Ok(()); // they are exchanged at the end of the pass
        }
        while let Some(bucket) = self.buckets.get_mut(pass.next)
            && bucket.missing == 0
        {
            bucket.exchange(&self.parameters, &self.group, self.passes.as_ref())?;
            pass.next += 1;
        }
        Ok(())
    }

    /// Finishes a backward pass.
    fn finish(&mut self) -> Result<()> {
        if self.options.find_unused_parameters {
            self.finish_with_unused()?;
        } else if self.is_built {
            self.want_all()?;
        } else {
            self.finish_building()?;
        }
        let Some(pass) = &self.pass else { return Ok(()) };
        self.buckets[pass.next..]
            .iter_mut()
            .try_for_each(|bucket| bucket.exchange(&self.parameters, &self.group, self.passes.as_ref()))?;
        // The buckets of a device share a stream.
        let by_device = self.buckets.chunk_by(|one, other| one.device() == other.device());
        by_device.map(|buckets| &buckets[0]).try_for_each(|bucket| bucket.wait(&self.group))?;
        if self.options.broadcast_buffers {
            self.buffers.iter().try_for_each(|buffer| self.group.broadcast(buffer, 0))?;
        }
        if self.options.find_unused_parameters {
            self.give_what_others_used(&pass.arrived)?;
        }
        if self.passes.as_ref().is_some_and(|passes| !passes.is_last()) {
            let placed = self.parameters.iter().zip(&self.places).filter(|(_, place)| place.is_some());
            placed.for_each(|((_, parameter), _)| parameter.clear_grad());
        }
        self.is_built = true;
        if let Some(pass) = &mut self.pass {
            pass.is_finished = true;
        }
        Ok(())
    }

    /// Finishes the first pass: checks that all ranks left out the same parameters, and creates the last buckets from the
    /// remaining gradients.
    fn finish_building(&mut self) -> Result<()> {
        let Some(pass) = &self.pass else { return Ok(()) };
        let unused: Vec<&str> = pass
            .arrived
            .iter()
            .zip(&self.parameters)
            .filter(|(came, _)| !**came)
            .map(|(_, (name, _))| name.as_str())
            .collect();
        let message = || format!("without a gradient here: {}", shown(&unused));
        self.agree(&unused, "parameters without a gradient", message)?;
        self.make_rest()
    }

    /// Returns an error unless every parameter that had a gradient in the first pass has one in this pass.
    fn want_all(&self) -> Result<()> {
        let Some(pass) = &self.pass else { return Ok(()) };
        let missing: Vec<&str> = (0..self.parameters.len())
            .filter(|i| self.places[*i].is_some() && !pass.arrived[*i])
            .map(|i| self.parameters[i].0.as_str())
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let message = format!(
            "no gradient in this backward pass for {}: set `find_unused_parameters` if the model does not always use all its \
             parameters",
            shown(&missing)
        );
        Err(Error::autograd(NAME, message))
    }

    /// In the first pass, creates the buckets from all parameters, in reverse order.
    fn finish_with_unused(&mut self) -> Result<()> {
        if !self.is_built {
            (0..self.parameters.len()).rev().try_for_each(|parameter| self.collect(parameter))?;
            return self.make_rest();
        }
        Ok(())
    }

    /// If another rank used a parameter, gives it a gradient on this rank as well. A parameter that no rank used gets
    /// none, as in a single process.
    fn give_what_others_used(&self, arrived: &[bool]) -> Result<()> {
        let own: Vec<u8> = arrived.iter().map(|came| u8::from(*came)).collect();
        let all = self.group.all_gather_bytes(&own, "used parameters")?;
        for (i, (_, parameter)) in self.parameters.iter().enumerate() {
            let used = all.iter().any(|rank| rank[i] == 1);
            if let (true, None, Some((bucket, slot))) = (used, parameter.grad(), self.places[i]) {
                self.buckets[bucket].give(slot, parameter)?;
            }
        }
        Ok(())
    }

    /// Returns an error unless all ranks have the same names, in the same order.
    fn agree(&self, names: &[&str], what: &str, message: impl Fn() -> String) -> Result<()> {
        match first_other(&self.group, &names.join("\n"), what)? {
            None => Ok(()),
            Some(rank) => Err(Error::autograd(
                NAME,
                format!(
                    "rank {rank} has gradients for different parameters than this rank, or in a different order ({}): set \
                     `find_unused_parameters` if ranks use different parts of the model",
                    message()
                ),
            )),
        }
    }
}

fn bytes_of(tensor: &Tensor) -> u64 {
    (tensor.numel() * tensor.dtype().size()) as u64
}
