//! Loaders that stop and continue, keep their threads, seed their samples, and read streams.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

use plimsoll_tensor::DType;

use super::super::{
    DataLoader, HostBatch, IterableDataset, IterableLoader, Pad, RandomSampler, Sample, SampleIterator,
    WorkerInfo,
};
use super::*;

/// Sample i is i and a random number. The threads that read are recorded.
#[derive(Default)]
struct Noisy {
    len: usize,
    threads: Mutex<Vec<ThreadId>>,
    reads: AtomicUsize,
}

impl Dataset for Noisy {
    fn len(&self) -> usize {
        self.len
    }

    fn fields(&self) -> Vec<Field> {
        let field = |name| Field { name, dtype: DType::I64, shape: vec![] };
        vec![field("number"), field("noise")]
    }

    fn write(&self, index: usize, out: &mut Sample<'_>) -> Result<(), DataError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let thread = std::thread::current().id();
        let mut threads = self.threads.lock().unwrap();
        if !threads.contains(&thread) {
            threads.push(thread);
        }
        out.slot::<i64>("number")?[0] = index as i64;
        let noise = out.seed();
        out.slot::<i64>("noise")?[0] = noise as i64;
        Ok(())
    }
}

fn noisy(len: usize) -> Arc<Noisy> {
    Arc::new(Noisy { len, ..Noisy::default() })
}

fn all(epoch: Epoch) -> Vec<HostBatch> {
    epoch.map(Result::unwrap).collect()
}

#[test]
fn a_resumed_epoch_is_bit_for_bit_the_rest_of_the_first() {
    for workers in [0, 1, 3] {
        let loader = |workers| DataLoader::new(noisy(100), 7).unwrap().shuffle(3).workers(workers);
        let whole = all(loader(0).epoch(5));
        for taken in [0, 1, 9, 14, 15] {
            let mut epoch = loader(workers).epoch(5);
            epoch.by_ref().take(taken).for_each(drop);
            let saved = serde_json::to_string(&epoch.state()).unwrap();
            drop(epoch);
            let state: LoaderState = serde_json::from_str(&saved).unwrap();
            assert_eq!((state.epoch, state.batch), (5, taken as u64));
            assert_eq!(all(loader(workers).resume(&state).unwrap()), whole[taken..], "{workers} workers");
        }
    }
}

#[test]
fn a_resumed_epoch_reads_no_earlier_sample_and_counts_on() {
    let data = noisy(100);
    let loader = DataLoader::new(data.clone(), 10).unwrap();
    let mut state = loader.epoch(0).state();
    state.batch = 8;
    let mut epoch = loader.resume(&state).unwrap();
    epoch.next().unwrap().unwrap();
    assert_eq!((data.reads.load(Ordering::Relaxed), epoch.state().batch), (10, 9));
}

#[test]
fn a_position_of_another_loader_is_refused() {
    let loader = DataLoader::new(noisy(100), 7).unwrap().shuffle(3);
    let state = loader.epoch(0).state();
    let refusal = |other: DataLoader| other.resume(&state).map(|_| ()).unwrap_err().to_string();
    let message = refusal(DataLoader::new(noisy(100), 8).unwrap().shuffle(3));
    assert!(message.contains("with a different batch size: 7, not 8"), "{message}");
    assert!(refusal(DataLoader::new(noisy(99), 7).unwrap().shuffle(3)).contains("number of samples"));
    assert!(
        refusal(DataLoader::new(noisy(100), 7).unwrap().shuffle(4)).contains("a different seed: 3, not 4")
    );
    assert!(refusal(DataLoader::new(noisy(100), 7).unwrap().seed(3)).contains("a different order"));
}

#[test]
fn the_randomness_of_samples_changes_by_epoch_and_seed_but_not_by_workers() {
    let noise = |seed, workers, epoch| {
        all(DataLoader::new(noisy(20), 3).unwrap().seed(seed).workers(workers).epoch(epoch))
    };
    assert_eq!(noise(1, 0, 0), noise(1, 4, 0));
    assert_ne!(noise(1, 0, 0), noise(1, 0, 1));
    assert_ne!(noise(1, 0, 0), noise(2, 0, 0));
    let batch = &noise(1, 0, 0)[0];
    let numbers = batch.array("noise").unwrap().as_slice::<i64>().unwrap();
    assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2]);
}

#[test]
fn persistent_workers_are_the_same_threads_in_each_epoch() {
    for (persistent, expected) in [(true, 2), (false, 6)] {
        let data = noisy(40);
        let loader = DataLoader::new(data.clone(), 2).unwrap().workers(2);
        let loader = if persistent { loader.persistent_workers() } else { loader };
        let first = all(loader.epoch(0));
        // This epoch ends early.
        loader.epoch(1).take(1).for_each(drop);
        assert_eq!(first.len(), 20);
        assert_eq!(all(loader.epoch(2)).len(), 20);
        assert_eq!(data.threads.lock().unwrap().len(), expected);
        drop(loader);
        assert_eq!(Arc::strong_count(&data), 1, "a thread still runs");
    }
}

#[test]
fn two_epochs_at_once_do_not_share_their_threads() {
    let loader = DataLoader::new(noisy(40), 2).unwrap().workers(2).persistent_workers();
    let (left, right) = (loader.epoch(0), loader.epoch(0));
    let pairs: Vec<_> = left.zip(right).map(|(left, right)| (left.unwrap(), right.unwrap())).collect();
    assert!(pairs.len() == 20 && pairs.iter().all(|(left, right)| left == right));
}

#[test]
fn a_function_runs_when_each_worker_starts_and_its_error_is_the_epochs() {
    let started = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&started);
    let loader = DataLoader::new(noisy(40), 2).unwrap().workers(3).seed(1);
    let noted = loader.clone().worker_init(move |info| {
        seen.lock().unwrap().push(info);
        Ok(())
    });
    all(noted.epoch(0));
    let mut infos = started.lock().unwrap().clone();
    infos.sort_by_key(|info| info.id);
    assert_eq!(
        infos.iter().map(|info| (info.id, info.workers)).collect::<Vec<_>>(),
        [(0, 3), (1, 3), (2, 3)]
    );
    assert!(infos[0].seed != infos[1].seed && infos[1].seed != infos[2].seed);

    let failing = loader.clone().worker_init(|_| Err(DataError::Custom("no database".into())));
    let message = failing.epoch(0).next().unwrap().unwrap_err().to_string();
    assert_eq!(message, "data worker 0 could not start its work: no database");
    let panicking = loader.persistent_workers().worker_init(|info| panic!("worker {}", info.id));
    for _ in 0..2 {
        let message = panicking.epoch(0).next().unwrap().unwrap_err().to_string();
        assert_eq!(message, "data worker 0 could not start its work: it panicked: worker 0");
    }
}

#[test]
fn a_sampler_that_points_outside_the_data_is_an_error() {
    let loader = DataLoader::new(noisy(3), 2).unwrap().sampler(RandomSampler::new(50, 1));
    let last = loader.epoch(0).last().unwrap().unwrap_err().to_string();
    assert!(last.contains("of a data set of 3"), "{last}");
}

/// Sample i is a square of ones of side i.
struct Growing;

impl Dataset for Growing {
    fn len(&self) -> usize {
        3
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field { name: "square", dtype: DType::F32, shape: vec![1, 1] }]
    }

    fn write(&self, index: usize, out: &mut Sample<'_>) -> Result<(), DataError> {
        out.resize("square", &[index, index])?;
        out.slot::<f32>("square")?.fill(1.0);
        Ok(())
    }
}

#[test]
fn samples_of_several_shapes_are_padded_or_an_error() {
    let loader = DataLoader::new(Arc::new(Growing), 3).unwrap();
    let message = loader.epoch(0).next().unwrap().unwrap_err().to_string();
    assert!(message.contains("sample 0: a sample's `square` has shape [0, 0], not [1, 1]"), "{message}");
    let pad = Pad::default().value("square", -1.0);
    let loader = loader.collate(move |samples| pad.collate(&samples)).workers(1);
    let batch = loader.epoch(0).next().unwrap().unwrap();
    let square = batch.array("square").unwrap();
    assert_eq!(square.shape, [3, 2, 2]);
    let expected = [-1.0f32, -1.0, -1.0, -1.0, 1.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0, 1.0];
    assert_eq!(square.as_slice(), Some(&expected[..]));
}

/// Worker w of n yields w, w + n, … below the limit; a chosen number causes an error or a panic.
struct Counting {
    below: usize,
    broken: usize,
    panics: usize,
}

impl IterableDataset for Counting {
    fn fields(&self) -> Vec<Field> {
        vec![Field { name: "number", dtype: DType::I64, shape: vec![] }]
    }

    fn samples(&self, epoch: u64, worker: WorkerInfo) -> Result<Box<dyn SampleIterator>, DataError> {
        let mut numbers = (worker.id..self.below).step_by(worker.workers);
        let (broken, panics) = (self.broken, self.panics);
        Ok(Box::new(move |out: &mut Sample<'_>| {
            let Some(number) = numbers.next() else { return Ok(false) };
            assert_ne!(number, panics, "no such number");
            if number == broken {
                return Err(DataError::Custom("a lost connection".into()));
            }
            out.slot::<i64>("number")?[0] = number as i64 + 100 * epoch as i64;
            Ok(true)
        }))
    }
}

fn counting(below: usize, broken: usize, panics: usize) -> IterableLoader {
    IterableLoader::new(Arc::new(Counting { below, broken, panics }), 2).unwrap()
}

fn numbers(epoch: Epoch) -> Vec<Vec<i64>> {
    let of = |batch: HostBatch| batch.array("number").unwrap().as_slice().unwrap().to_vec();
    epoch.map(|batch| of(batch.unwrap())).collect()
}

#[test]
fn a_stream_is_batched_by_each_worker_and_taken_in_turn() {
    let stream = counting(7, 99, 99);
    assert_eq!(numbers(stream.epoch(0)), [vec![0, 1], vec![2, 3], vec![4, 5], vec![6]]);
    assert_eq!(numbers(stream.clone().drop_last().epoch(1)), [[100, 101], [102, 103], [104, 105]]);
    let three = stream.clone().workers(3).persistent_workers();
    assert_eq!(numbers(three.epoch(0)), [vec![0, 3], vec![1, 4], vec![2, 5], vec![6]]);
    assert_eq!(numbers(three.epoch(0)).len(), 4);
    assert_eq!(numbers(stream.workers(9).epoch(0)), (0..7).map(|n| vec![n]).collect::<Vec<_>>());
    assert!(numbers(counting(0, 9, 9).epoch(0)).is_empty());
}

#[test]
fn a_stream_resumes_where_it_stopped() {
    let stream = counting(31, 99, 99).workers(3);
    let whole = numbers(stream.epoch(0));
    let mut epoch = stream.epoch(0);
    epoch.by_ref().take(4).for_each(drop);
    assert_eq!(numbers(stream.resume(&epoch.state()).unwrap()), whole[4..]);
    let refused = stream.workers(2).resume(&epoch.state()).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("a different number of workers: 3, not 2"), "{refused}");
}

#[test]
fn a_streams_error_or_panic_ends_the_epoch() {
    for workers in [0, 1] {
        let last = counting(9, 5, 99).workers(workers).epoch(0).last().unwrap().unwrap_err().to_string();
        assert_eq!(last, "batch 2, sample 5: a lost connection");
        let last = counting(9, 99, 4).workers(workers).epoch(0).last().unwrap().unwrap_err().to_string();
        assert!(
            last.starts_with("batch 2: the data set panicked: ") && last.contains("no such number"),
            "{last}"
        );
    }
}
