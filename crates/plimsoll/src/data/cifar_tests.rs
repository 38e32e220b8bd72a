//! CIFAR-10 folders, valid and invalid.

use super::super::idx::tests::Scratch;
use super::super::{DataLoader, HostBatch};
use super::*;

/// Images of one colour each: (label, red, green, blue).
fn records(images: &[(u8, u8, u8, u8)]) -> Vec<u8> {
    let one = |&(label, red, green, blue): &(u8, u8, u8, u8)| {
        [vec![label], vec![red; 1024], vec![green; 1024], vec![blue; 1024]].concat()
    };
    images.iter().flat_map(one).collect()
}

fn all(data: Arc<dyn Dataset>) -> HostBatch {
    let len = data.len();
    DataLoader::new(data, len).unwrap().epoch(0).next().unwrap().unwrap()
}

#[test]
fn labels_and_channels_are_read_in_the_files_order() {
    let scratch = Scratch::folder("cifar");
    scratch.put("data_batch_2.bin", &records(&[(7, 255, 0, 0)]));
    scratch.put("data_batch_1.bin", &records(&[(3, 0, 255, 0), (9, 0, 0, 255)]));
    scratch.put("test_batch.bin", &records(&[(1, 0, 0, 0)]));
    let dir = CifarDir::open(&scratch.0).unwrap();
    let split = dir.load().unwrap();
    let batch = all(split.train);
    assert_eq!(batch.array("labels").unwrap().as_slice(), Some(&[3i64, 9, 7][..]));
    let images = batch.array("images").unwrap();
    assert_eq!(images.shape, [3, 3, 32, 32]);
    let pixels = images.as_slice::<f32>().unwrap();
    let first = [pixels[0], pixels[1024], pixels[2048]];
    assert_eq!(first, [-0.4914 / 0.2470, (1.0 - 0.4822) / 0.2435, -0.4465 / 0.2616f32]);
    assert_eq!(all(split.test).array("labels").unwrap().as_slice(), Some(&[1i64][..]));
    let shapes = dir.shapes().unwrap();
    assert_eq!((shapes.train.len(), shapes.test.len()), (3, 1));
    assert_eq!(CifarDir::classes()[9], "truck");
}

#[test]
fn the_problem_with_a_folder_is_named() {
    let scratch = Scratch::folder("bad-cifar");
    let refusal =
        || CifarDir::open(&scratch.0).and_then(|dir| dir.load()).map(|_| ()).unwrap_err().to_string();
    assert!(refusal().contains("no CIFAR-10 in"));
    scratch.put("data_batch_1.bin", &records(&[(3, 0, 0, 0)])[..3000]);
    let message = refusal();
    assert!(
        message.contains("data_batch_1.bin has 3000 bytes, which is not a whole number of images"),
        "{message}"
    );
    scratch.put("data_batch_1.bin", &records(&[(3, 0, 0, 0), (10, 0, 0, 0)]));
    assert!(refusal().contains("data_batch_1.bin: label 1 is 10; labels are 0 to 9"));
}
