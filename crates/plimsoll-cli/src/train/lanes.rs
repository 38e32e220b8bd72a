//! The data of a rank's lanes: the parts of each batch that the rank trains on, each in a separate pass, and the parts
//! of the test data.
//!
//! Without `--reproducible` there are as many lanes as ranks, so each rank has one.

use plimsoll::ProcessGroup;
use plimsoll::data::{DataError, DataLoader, Epoch, Order, Sampler};

use super::job::Job;

/// The data of each lane of this rank. All training loaders have equally many batches, of equal sizes.
pub(super) struct Lanes {
    pub(super) training: Vec<DataLoader>,
    pub(super) testing: Vec<DataLoader>,
    /// Test batches of the lane that has the most. All ranks must gather parameters equally often.
    pub(super) most_test_batches: usize,
}

impl Lanes {
    /// # Errors
    /// If the number of lanes does not divide the batch size.
    pub(super) fn new(job: &Job, group: &ProcessGroup, has_values: bool) -> Result<Lanes, DataError> {
        let lanes = job.lanes();
        let own = || (group.rank()..lanes).step_by(group.size());
        let ready = |loader: DataLoader| {
            if has_values { loader.workers(job.workers) } else { loader.shapes_only() }
        };
        let batch_size = job.batch_size / lanes;
        let (training, testing) =
            (job.task.training(job.batch_size, job.seed)?, job.task.testing(batch_size)?);
        Ok(Lanes {
            training: own()
                .map(|lane| training.clone().replica(lane, lanes).map(ready))
                .collect::<Result<_, _>>()?,
            testing: own().map(|lane| ready(share(testing.clone(), lane, lanes))).collect(),
            most_test_batches: testing.dataset().len().div_ceil(lanes).div_ceil(batch_size.max(1)),
        })
    }
}

/// An epoch of the first sample alone.
pub(super) fn first_sample(loader: &DataLoader) -> Epoch {
    loader.clone().sampler(Share { start: 0, len: 1 }).epoch(0)
}

/// A lane's part of the test; all of it if there is one lane.
fn share(testing: DataLoader, lane: usize, lanes: usize) -> DataLoader {
    let all = testing.dataset().len();
    if lanes == 1 {
        return testing;
    }
    let border = |lane: usize| all * lane / lanes;
    testing.sampler(Share { start: border(lane), len: border(lane + 1) - border(lane) })
}

/// Consecutive samples.
#[derive(Clone, Copy)]
struct Share {
    start: usize,
    len: usize,
}

impl Sampler for Share {
    fn len(&self) -> usize {
        self.len
    }

    fn order(&self, _: u64) -> Result<Order, DataError> {
        let start = self.start;
        Ok(Order::computed(self.len, move |position| start + position))
    }
}
