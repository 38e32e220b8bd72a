//! MNIST folders, valid and invalid, and the real files if the checkout has them.

use super::super::idx::tests::{Scratch, gzip, idx};
use super::super::{DataLoader, HostBatch};
use super::*;

/// Writes a pair of 2×2 images, all of whose pixels are 17 times the label.
fn put_pair(scratch: &Scratch, part: &str, labels: &[u8]) {
    let count = labels.len() as u32;
    let pixels: Vec<u8> = labels.iter().flat_map(|&label| [label.wrapping_mul(17); 4]).collect();
    scratch.put(&format!("{part}-images-idx3-ubyte"), &idx(&[count, 2, 2], &pixels));
    scratch.put(&format!("{part}-labels-idx1-ubyte.gz"), &gzip(&idx(&[count], labels)));
}

fn all(dataset: Arc<dyn Dataset>) -> HostBatch {
    let len = dataset.len();
    DataLoader::new(dataset, len).unwrap().epoch(0).next().unwrap().unwrap()
}

fn labels(dataset: Arc<dyn Dataset>) -> Vec<i64> {
    all(dataset).array("labels").unwrap().as_slice().unwrap().to_vec()
}

#[test]
fn one_pair_is_split_nine_to_one() {
    let scratch = Scratch::folder("one-pair");
    put_pair(&scratch, "t10k", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let split = MnistDir::open(&scratch.0).unwrap().load().unwrap();
    assert_eq!(labels(split.train), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(labels(split.test), [9]);
}

#[test]
fn two_pairs_are_not_split() {
    let scratch = Scratch::folder("two-pairs");
    put_pair(&scratch, "t10k", &[7, 8]);
    put_pair(&scratch, "train", &[1, 2, 3]);
    let split = MnistDir::open(&scratch.0).unwrap().load().unwrap();
    assert_eq!((labels(split.train), labels(split.test)), (vec![1, 2, 3], vec![7, 8]));
}

#[test]
fn pixels_come_out_normalised() {
    let scratch = Scratch::folder("normalised");
    put_pair(&scratch, "train", &[3, 0]);
    let batch = all(MnistDir::open(&scratch.0).unwrap().load().unwrap().train);
    let images = batch.array("images").unwrap();
    assert_eq!(images.shape, [1, 1, 2, 2]);
    assert_eq!(images.as_slice::<f32>().unwrap(), [(51.0 / 255.0 - 0.1307) / 0.3081; 4]);
}

#[test]
fn shapes_are_those_of_the_values() {
    let scratch = Scratch::folder("shapes");
    put_pair(&scratch, "train", &[1, 2, 3]);
    let dir = MnistDir::open(&scratch.0).unwrap();
    let (shapes, values) = (dir.shapes().unwrap(), dir.load().unwrap());
    assert_eq!((shapes.train.len(), shapes.test.len()), (values.train.len(), values.test.len()));
    assert_eq!(shapes.train.fields(), values.train.fields());
    assert_eq!((shapes.train.resident_bytes(), values.train.resident_bytes()), (0, 15));
}

/// Opens and loads a folder that `prepare` has filled; returns the error message.
fn refusal(name: &str, prepare: impl FnOnce(&Scratch)) -> String {
    let scratch = Scratch::folder(name);
    prepare(&scratch);
    let message = MnistDir::open(&scratch.0).and_then(|dir| dir.load()).map(|_| ()).unwrap_err().to_string();
    assert!(message.contains(name), "the place is not named: {message}");
    message
}

#[test]
fn the_problem_with_a_folder_is_named() {
    let empty = refusal("empty-folder", |_| ());
    assert!(empty.contains("put train-images-idx3-ubyte and train-labels-idx1-ubyte there"), "{empty}");

    let lone = refusal("lone-images", |dir| drop(dir.put("train-images-idx3-ubyte", &idx(&[1, 1, 1], &[0]))));
    assert!(lone.contains("train-labels-idx1-ubyte (or .gz) is missing"), "{lone}");

    let label = refusal("label-ten", |dir| put_pair(dir, "train", &[1, 10]));
    assert!(label.contains("label 1 is 10; labels are 0 to 9"), "{label}");

    let uneven = refusal("uneven", |dir| {
        put_pair(dir, "train", &[1, 2]);
        dir.put("train-images-idx3-ubyte", &idx(&[3, 1, 1], &[0; 3]));
    });
    assert!(uneven.contains("has [3] but") && uneven.contains("has [2]"), "{uneven}");

    let swapped = refusal("swapped", |dir| {
        dir.put("train-images-idx3-ubyte", &idx(&[2], &[0; 2]));
        dir.put("train-labels-idx1-ubyte", &idx(&[2, 1, 1], &[0; 2]));
    });
    assert!(swapped.contains("has 1 dimensions [2]; 3 expected"), "{swapped}");

    let single = refusal("single-image", |dir| put_pair(dir, "train", &[1]));
    assert!(single.contains("has 1 images; at least 2 are needed"), "{single}");

    let sizes = refusal("two-sizes", |dir| {
        put_pair(dir, "train", &[1, 2]);
        put_pair(dir, "t10k", &[1, 2]);
        dir.put("t10k-images-idx3-ubyte", &idx(&[2, 1, 1], &[0; 2]));
    });
    assert!(sizes.contains("has [2, 2] but"), "{sizes}");
}

/// The 10,000 test images, if they lie next to the checkout (they are not in the repository).
#[test]
fn the_real_pair_opens_as_known() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/mnist");
    if !dir.is_dir() {
        eprintln!("skipped: no MNIST in {}", dir.display());
        return;
    }
    let mnist = MnistDir::open(&dir).unwrap();
    assert_eq!((mnist.train.count, mnist.train.rows, mnist.train.columns), (10_000, 28, 28));
    let split = mnist.load().unwrap();
    assert_eq!((split.train.len(), split.test.len()), (9_000, 1_000));
    assert_eq!(labels(split.train)[..5], [7, 2, 1, 0, 4]);
    assert_eq!(split.test.resident_bytes(), 10_000 * 785);
}
