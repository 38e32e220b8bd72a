//! Pinned epochs yield the loader's batches and errors in order, and make no more batches than needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use plimsoll_tensor::DType;

use super::super::{DataLoader, Dataset, Field, Sample};
use super::*;

/// Sample `i` is `i`; one of them is an error, another panics.
struct Numbers {
    len: usize,
    broken: usize,
    panics: usize,
    read: AtomicUsize,
}

impl Dataset for Numbers {
    fn len(&self) -> usize {
        self.len
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field { name: "number", dtype: DType::I64, shape: vec![] }]
    }

    fn write(&self, index: usize, out: &mut Sample<'_>) -> Result<(), DataError> {
        self.read.fetch_add(1, Ordering::Relaxed);
        assert!(index != self.panics, "sample {index} is cursed");
        if index == self.broken {
            return Err(DataError::Custom("unreadable".into()));
        }
        out.slot::<i64>("number")?[0] = index as i64;
        Ok(())
    }
}

fn numbers(len: usize) -> Numbers {
    Numbers { len, broken: usize::MAX, panics: usize::MAX, read: AtomicUsize::new(0) }
}

fn loader(data: Numbers, workers: usize) -> DataLoader {
    DataLoader::new(Arc::new(data), 2).unwrap().workers(workers)
}

#[test]
fn pinning_a_batch_copies_it_once() {
    let host = Device::cpu();
    let array = super::super::HostArray::new(vec![1 << 20], vec![3u8; 1 << 20]);
    let field = super::super::HostField { name: "large", array };
    let batch = HostBatch { samples: 1 << 20, fields: vec![field] };
    host.reset_peak_memory_stats();
    let before = host.memory_allocated();
    let pinned = batch.pin_memory().unwrap();
    // Other tests allocate some bytes at the same time.
    assert!(host.max_memory_allocated() < before + (1 << 19), "{}", host.max_memory_allocated());
    assert!(pinned[0].is_pinned() && pinned[0].to_vec::<u8>().unwrap() == vec![3; 1 << 20]);
}

fn values(batch: &PinnedBatch) -> Vec<i64> {
    batch.tensor("number").unwrap().to_vec().unwrap()
}

#[test]
fn pinned_batches_are_the_loaders_in_order_for_any_number_of_workers() {
    for workers in [0, 1, 3] {
        let loader = loader(numbers(7), workers).shuffle(5).persistent_workers();
        for epoch in 0..2 {
            let expected: Vec<Vec<i64>> = loader
                .epoch(epoch)
                .map(|batch| batch.unwrap().array("number").unwrap().as_slice::<i64>().unwrap().to_vec())
                .collect();
            let pinned: Vec<PinnedBatch> = loader.epoch(epoch).pin_memory().map(Result::unwrap).collect();
            assert_eq!(pinned.iter().map(values).collect::<Vec<_>>(), expected, "{workers} workers");
            assert!(pinned.iter().all(|batch| batch.tensor("number").unwrap().is_pinned()));
            assert_eq!(pinned.iter().map(|batch| batch.samples).collect::<Vec<_>>(), [2, 2, 2, 1]);
        }
    }
}

#[test]
fn a_pinned_batch_goes_to_a_device_under_its_fields_names() {
    let batch = loader(numbers(2), 0).epoch(0).pin_memory().next().unwrap().unwrap();
    let device = Device::cpu_with(plimsoll_tensor::CpuConfig::default());
    let moved = batch.to_device(&device).unwrap();
    assert_eq!((moved[0].label(), moved[0].to_vec::<i64>().unwrap()), ("number".to_owned(), vec![0, 1]));
    assert!(device.memory_by_category()[Category::Input] > 0);
    let message = batch.tensor("labels").unwrap_err().to_string();
    assert!(message.contains("labels") && message.contains("number"), "{message}");
}

#[test]
fn errors_and_panics_of_a_worker_come_in_the_place_of_their_batch_and_end_the_epoch() {
    for workers in [0, 2] {
        for (data, message) in [
            (Numbers { broken: 5, ..numbers(20) }, "batch 2, sample 5: unreadable"),
            (Numbers { panics: 4, ..numbers(20) }, "sample 4 is cursed"),
        ] {
            let mut epoch = loader(data, workers).epoch(0).pin_memory();
            assert_eq!(values(&epoch.next().unwrap().unwrap()), [0, 1]);
            assert_eq!(values(&epoch.next().unwrap().unwrap()), [2, 3]);
            let error = epoch.next().unwrap().unwrap_err().to_string();
            assert!(error.contains(message) && error.contains("batch 2"), "{workers} workers: {error}");
            assert!(epoch.next().is_none());
            assert_eq!(epoch.state().batch, 2);
        }
    }
}

#[test]
fn the_position_counts_what_was_taken_and_an_early_end_joins_the_threads() {
    let loader = loader(numbers(100), 2);
    let mut epoch = loader.epoch(3).pin_memory();
    let taken: Vec<_> = epoch.by_ref().take(5).map(|batch| values(&batch.unwrap())).collect();
    sleep(Duration::from_millis(20));
    let state = epoch.state();
    assert_eq!((state.batch, taken.len()), (5, 5));
    drop(epoch);
    assert_eq!(Arc::strong_count(loader.dataset()), 1, "no thread holds the data set");
    let rest = loader.resume(&state).unwrap().pin_memory();
    assert_eq!(rest.state().batch, 5);
    assert_eq!(rest.map(|batch| values(&batch.unwrap())).next().unwrap(), [10, 11]);
}

#[test]
fn an_idle_consumer_stops_the_pinning() {
    let data = Arc::new(numbers(1000));
    let loader = DataLoader::new(Arc::clone(&data) as Arc<dyn Dataset>, 2).unwrap();
    let mut epoch = loader.epoch(0).pin_memory();
    let _first = epoch.next().unwrap().unwrap();
    sleep(Duration::from_millis(50));
    // One batch taken, one ready in the channel, one held by the thread.
    assert!(data.read.load(Ordering::Relaxed) <= 2 * 3, "{:?}", data.read);
}

#[test]
fn shapes_without_values_cannot_be_pinned() {
    let error = loader(numbers(4), 0).shapes_only().epoch(0).pin_memory().next().unwrap().unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("batch 0 cannot be pinned: ") && message.contains("`number`"), "{message}");
}
