//! The synthetic digits: deterministic, balanced, and inked like MNIST. Their looks are not tested.

use super::super::dataset::SampleSeed;
use super::*;

/// FNV-1a, which is enough to detect a change.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Golden values. They change when a glyph or the hand is changed on purpose; runs on synthetic digits can then no longer be
/// compared with older ones, so say so in the changelog. If they differ only on another machine, Note [Same pixels everywhere]
/// has been violated.
#[test]
fn drawings_never_change_between_machines_and_releases() {
    let digits = Digits::new(1, 10_000);
    let drawn = [0, 1, 2, 9_999].map(|index| {
        let (pixels, label) = digits.draw(index);
        (label, checksum(&pixels))
    });
    assert_eq!(
        drawn,
        [
            (6, 0x3587_ae68_9046_638e),
            (8, 0x7782_a81b_8110_56e5),
            (7, 0xdcf1_8e84_4007_877f),
            (0, 0x30b5_ee39_dc8b_8298)
        ],
        "{drawn:#x?}"
    );
}

#[test]
fn a_drawing_depends_on_seed_and_index_alone() {
    let backwards: Vec<_> = (0..20).rev().map(|index| Digits::new(3, 20).draw(index)).collect();
    let forwards: Vec<_> = (0..20).map(|index| Digits::new(3, 999).draw(index)).collect();
    assert!(backwards.iter().rev().eq(&forwards));
    assert_ne!(Digits::new(4, 20).draw(0).0, forwards[0].0);
    assert_ne!(forwards[0].0, forwards[1].0);
}

#[test]
fn each_ten_samples_show_each_digit_once() {
    let digits = Digits::new(5, 0);
    let tens: Vec<Vec<u8>> =
        (0..20).map(|ten| (0..10).map(|i| digits.label(10 * ten + i)).collect()).collect();
    for ten in &tens {
        let mut sorted = ten.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }
    assert_ne!(tens[0], tens[1]);
}

/// MNIST's pixels have mean 0.1307 and deviation 0.3081, and the loader normalises by these.
#[test]
fn ink_is_spread_like_mnists() {
    let digits = Digits::new(1, 2_000);
    let ink: Vec<f64> =
        (0..2_000).flat_map(|i| digits.draw(i).0).map(|byte| f64::from(byte) / 255.0).collect();
    let mean = ink.iter().sum::<f64>() / ink.len() as f64;
    let deviation = (ink.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / ink.len() as f64).sqrt();
    assert!((0.12..0.15).contains(&mean) && (0.29..0.32).contains(&deviation), "{mean} {deviation}");
}

#[test]
fn every_drawing_has_ink_and_an_empty_corner() {
    for index in 0..2_000 {
        let (pixels, label) = Digits::new(2, 0).draw(index);
        let inked = pixels.iter().filter(|&&ink| ink > 127).count();
        assert!((15..400).contains(&inked), "drawing {index}, a {label}, has {inked} bright pixels");
        assert_eq!(pixels[0], 0);
    }
}

#[test]
fn a_sample_past_the_end_is_an_error() {
    let end = Digits::new(1, 3).write(3, &mut Sample::new(&mut [], 0, SampleSeed::default()));
    assert!(matches!(end, Err(DataError::OutOfRange { index: 3, len: 3 })));
}
