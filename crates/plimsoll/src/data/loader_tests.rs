//! The loader with zero, one and many workers: order, content, early ends, errors and panics.

use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll_tensor::DType;

use super::super::Sample;
use super::*;

/// Sample i is the number i and its square. Chosen samples fail; reads are counted.
#[derive(Default)]
struct Squares {
    len: usize,
    broken: Option<usize>,
    panics: Option<usize>,
    reads: AtomicUsize,
}

impl Dataset for Squares {
    fn len(&self) -> usize {
        self.len
    }

    fn fields(&self) -> Vec<Field> {
        vec![
            Field { name: "number", dtype: DType::I64, shape: vec![] },
            Field { name: "square", dtype: DType::F32, shape: vec![2] },
        ]
    }

    fn write(&self, index: usize, out: &mut Sample<'_>) -> Result<(), DataError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        assert!(self.panics != Some(index), "no sample {index}");
        if self.broken == Some(index) {
            return Err(DataError::Custom("a bad disk".into()));
        }
        out.slot::<i64>("number")?[0] = index as i64;
        // The second element is not written, and must be zero even in a recycled batch.
        out.slot::<f32>("square")?[0] = (index * index) as f32;
        Ok(())
    }
}

fn loader(len: usize, batch_size: usize) -> DataLoader {
    of(Squares { len, ..Squares::default() }, batch_size)
}

fn of(squares: Squares, batch_size: usize) -> DataLoader {
    DataLoader::new(Arc::new(squares), batch_size).unwrap()
}

fn batches(loader: &DataLoader, epoch: u64) -> Vec<HostBatch> {
    loader.epoch(epoch).map(Result::unwrap).collect()
}

fn numbers(loader: &DataLoader, epoch: u64) -> Vec<Vec<i64>> {
    let of = |batch: &HostBatch| batch.array("number").unwrap().as_slice().unwrap().to_vec();
    batches(loader, epoch).iter().map(of).collect()
}

#[test]
fn samples_come_in_order_and_the_last_batch_may_be_partial() {
    assert_eq!(numbers(&loader(5, 2), 0), [vec![0, 1], vec![2, 3], vec![4]]);
    assert_eq!(numbers(&loader(5, 2).drop_last(), 0), [[0, 1], [2, 3]]);
    assert_eq!(numbers(&loader(2, 9), 0), [[0, 1]]);
    assert!(numbers(&loader(2, 9).drop_last(), 0).is_empty());
    assert!(numbers(&loader(0, 9).workers(2), 0).is_empty());
}

#[test]
fn a_batch_of_nothing_is_refused() {
    let refused = DataLoader::new(Arc::new(Squares::default()), 0);
    assert!(matches!(refused, Err(DataError::BatchSize)));
}

#[test]
fn the_number_of_workers_changes_nothing() {
    let alone = loader(103, 10).shuffle(3);
    for workers in [1, 2, 5, 40] {
        for prefetch in [0, 1, 2] {
            let together = alone.clone().workers(workers).prefetch_factor(prefetch);
            for epoch in 0..3 {
                assert_eq!(batches(&together, epoch), batches(&alone, epoch), "{workers} workers");
            }
        }
    }
}

#[test]
fn each_epoch_has_an_order_of_its_own_and_every_sample_once() {
    let loader = loader(50, 7).shuffle(1);
    assert_ne!(numbers(&loader, 0), numbers(&loader, 1));
    assert_eq!(numbers(&loader, 1), numbers(&loader, 1));
    let mut all: Vec<i64> = numbers(&loader, 1).concat();
    all.sort_unstable();
    assert_eq!(all, (0..50).collect::<Vec<_>>());
}

#[test]
fn shapes_only_has_the_same_shapes_and_bytes_and_reads_nothing() {
    let squares = Arc::new(Squares { len: 11, ..Squares::default() });
    let loader = DataLoader::new(squares.clone(), 4).unwrap().shuffle(1).workers(2);
    let shapes = batches(&loader.clone().shapes_only(), 0);
    assert_eq!(squares.reads.load(Ordering::Relaxed), 0);
    assert!(shapes.iter().all(|batch| batch.array("square").unwrap().as_slice::<f32>().is_none()));
    let bare = |mut batch: HostBatch| {
        assert_eq!(batch.bytes(), batch.samples as u64 * 16);
        batch.fields.iter_mut().for_each(|field| field.array.values = super::super::HostValues::Absent);
        batch
    };
    let values: Vec<_> = batches(&loader, 0).into_iter().map(bare).collect();
    assert_eq!(shapes, values);
}

#[test]
fn an_error_comes_in_the_place_of_its_batch_and_ends_the_epoch() {
    for workers in [0, 1, 2, 5] {
        let loader = of(Squares { len: 100, broken: Some(42), ..Squares::default() }, 10).workers(workers);
        let mut epoch = loader.epoch(0);
        assert_eq!(epoch.by_ref().take(4).filter(Result::is_ok).count(), 4);
        let message = epoch.next().unwrap().unwrap_err().to_string();
        assert_eq!(message, "batch 4, sample 42: a bad disk", "{workers} workers");
        assert!(epoch.next().is_none());
    }
}

#[test]
fn a_panic_is_an_error_and_not_a_hang() {
    for workers in [0, 1, 3] {
        let loader = of(Squares { len: 100, panics: Some(25), ..Squares::default() }, 10).workers(workers);
        let last = loader.epoch(0).last().unwrap().unwrap_err().to_string();
        assert_eq!(last, "batch 2: the data set panicked: no sample 25", "{workers} workers");
    }
}

#[test]
fn an_epoch_that_is_left_early_joins_its_workers() {
    for taken in [0, 1, 3] {
        let squares = Arc::new(Squares { len: 10_000, ..Squares::default() });
        let loader = DataLoader::new(squares.clone(), 2).unwrap().workers(3);
        let mut epoch = loader.epoch(0);
        epoch.by_ref().take(taken).for_each(drop);
        drop(epoch);
        drop(loader);
        // Each worker holds a reference to the data set. Only ours is left, so no worker is running.
        assert_eq!(Arc::strong_count(&squares), 1);
        let ahead = squares.reads.load(Ordering::Relaxed) - 2 * taken.min(squares.len);
        // Two batches of two samples for each worker, plus the batches in progress when the channels closed.
        assert!(ahead <= 3 * 2 * 2 + 3 * 2, "{ahead} samples read ahead");
    }
}

#[test]
fn an_idle_consumer_stops_the_workers() {
    let squares = Arc::new(Squares { len: 1000, ..Squares::default() });
    let loader = DataLoader::new(squares.clone(), 1).unwrap().workers(2).prefetch_factor(3);
    let mut epoch = loader.epoch(0);
    epoch.next().unwrap().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(squares.reads.load(Ordering::Relaxed) <= 1 + 2 * 3);
    assert_eq!(loader.buffer_bytes(), (1 + 2 * 3) * 16);
}

#[test]
fn a_recycled_batch_is_as_good_as_new() {
    let loader = loader(5, 2);
    let fresh = batches(&loader, 0);
    for mut batch in batches(&loader, 0) {
        for field in &mut batch.fields {
            if let Some(values) = field.array.as_mut_slice::<f32>() {
                values.fill(f32::NAN);
            }
        }
        loader.recycle(batch);
    }
    assert_eq!(batches(&loader, 0), fresh);
}

#[test]
fn a_stranger_is_not_recycled() {
    let loader = loader(5, 2);
    loader.recycle(HostBatch { samples: 1, fields: vec![] });
    assert_eq!(batches(&loader, 0)[0].fields.len(), 2);
}

fn first_error(loader: &DataLoader) -> (String, u64) {
    let mut epoch = loader.epoch(0);
    let error = epoch.next().unwrap().unwrap_err();
    assert!(epoch.next().is_none());
    match error {
        DataError::OutOfHostMemory { what, bytes, .. } => (what, bytes),
        other => panic!("{other}"),
    }
}

#[test]
fn an_order_that_the_host_cannot_hold_is_an_error_of_the_epoch() {
    let len = usize::MAX / 16;
    for workers in [0, 2] {
        let loader = loader(len, 1).workers(workers).shuffle(1);
        let what = format!("the shuffled order of {len} samples");
        assert_eq!(first_error(&loader), (what, len as u64 * 8), "{workers} workers");
        // Without values, the order does not matter.
        assert_eq!(loader.shapes_only().epoch(0).next().unwrap().unwrap().samples, 1);
    }
}

#[test]
fn a_batch_that_the_host_cannot_hold_is_an_error_of_the_epoch() {
    let len = usize::MAX / 16;
    for workers in [0, 2] {
        let loader = loader(len, usize::MAX).workers(workers);
        let what = format!("a batch's `number` of shape [{len}]");
        assert_eq!(first_error(&loader), (what, len as u64 * 8), "{workers} workers");
        assert_eq!(loader.batch_bytes(), len as u64 * 16);
    }
    let endless = Field { name: "images", dtype: DType::F32, shape: vec![1 << 20, 1 << 20] };
    let endless = super::super::Shapes { len, fields: vec![endless] };
    let loader = DataLoader::new(Arc::new(endless), usize::MAX).unwrap().workers(2);
    assert_eq!(first_error(&loader).1, u64::MAX);
    assert_eq!((loader.batch_bytes(), loader.buffer_bytes()), (u64::MAX, u64::MAX));
}

#[test]
fn after_a_batch_that_did_not_fit_the_next_epoch_starts_afresh() {
    // The failure used up the spare batch; another loader with the same spares allocates its own.
    let loader = loader(usize::MAX / 16, usize::MAX);
    loader.recycle(HostBatch::absent(1, &loader.fields));
    first_error(&loader);
    let small = DataLoader {
        batching: of(Squares { len: usize::MAX / 16, ..Squares::default() }, 2).batching,
        ..loader
    };
    assert_eq!(
        small.epoch(0).next().unwrap().unwrap().array("number").unwrap().as_slice(),
        Some(&[0i64, 1][..])
    );
}

#[test]
fn replicas_together_have_the_batches_of_one() {
    let indices = |loader: &DataLoader, epoch| -> Vec<Vec<usize>> {
        let batches = loader.batches(epoch).unwrap();
        let batch = |number| (0..batches.samples(number)).map(|slot| batches.index(number, slot)).collect();
        (0..loader.len()).map(batch).collect()
    };
    for (samples, drops) in [(64, false), (61, false), (61, true)] {
        let loader = DataLoader::new(Arc::new(crate::data::Digits::new(1, samples)), 12).unwrap().shuffle(3);
        let loader = if drops { loader.drop_last() } else { loader };
        let whole = indices(&loader, 5);
        let parts: Vec<_> =
            (0..4).map(|rank| indices(&loader.clone().replica(rank, 4).unwrap(), 5)).collect();
        for (number, batch) in whole.iter().enumerate() {
            let size = parts[0][number].len();
            assert!(parts.iter().all(|part| part[number].len() == size), "equal parts");
            let together: Vec<usize> =
                (0..size).flat_map(|slot| parts.iter().map(move |part| part[number][slot])).collect();
            assert_eq!(together[..batch.len()], batch[..], "batch {number} of {samples} samples");
            // The last batch is filled up with the first samples.
            assert_eq!(together[batch.len()..], whole[0][..together.len() - batch.len()]);
        }
    }
}

#[test]
fn the_position_is_that_of_the_whole_batches() {
    let loader = DataLoader::new(Arc::new(crate::data::Digits::new(1, 64)), 8).unwrap().shuffle(3);
    let [two, four] = [2, 4].map(|replicas| loader.clone().replica(1, replicas).unwrap());
    let mut epoch = two.epoch(0);
    epoch.by_ref().take(3).for_each(|batch| assert_eq!(batch.unwrap().samples, 4));
    let state = epoch.state();
    assert_eq!(four.resume(&state).unwrap().map(|batch| batch.unwrap().samples).collect::<Vec<_>>(), [2; 5]);
    assert_eq!(loader.resume(&state).unwrap().count(), 5);
    assert!(
        loader
            .clone()
            .replica(0, 3)
            .err()
            .unwrap()
            .to_string()
            .contains("cannot be divided into 3 equal parts")
    );
    assert!(loader.replica(2, 2).is_err());
}
