//! The layout of a described device's multiprocessors: Note [Layout of the multiprocessors].
//!
//! Note [Layout of the multiprocessors]: since Hopper, kernels run in clusters of thread blocks, and a cluster stays
//! within one GPC, a group of multiprocessors. On a real GPU, cuDNN finds out how many multiprocessors each GPC has, and so
//! how many clusters of 1 to 16 blocks can run at once. That decides into how many parts it splits the weights'
//! gradient, and the workspace. The JSON description has no key for it: cuDNN then assumes a single GPC of 18. So the
//! numbers are written into cuDNN's descriptor in place of that GPC. The location is undocumented. It is found by the
//! values around it; if they differ from those of cuDNN 9.19 and 9.26, nothing is written.

use std::ffi::c_void;

/// The maximum number of GPCs that cuDNN has room for.
const GPCS: usize = 24;
/// The cluster sizes that it counts, from 1.
const SIZES: usize = 16;

/// Writes each GPC's number of multiprocessors into a finished device descriptor; returns whether it could.
///
/// # Safety
///
/// `descriptor` is a live cuDNN descriptor that no other thread uses.
pub(super) unsafe fn write(descriptor: *mut c_void, layout: &[i32], device_version: i32) -> bool {
    // SAFETY: cuDNN allocates descriptors with `operator new`, which is `malloc` in this process.
    let bytes = unsafe { libc::malloc_usable_size(descriptor) };
    let words: *mut i32 = descriptor.cast();
    // SAFETY: the allocation has this size and `malloc`'s alignment, and by the contract above no one else uses it.
    let words = unsafe { std::slice::from_raw_parts_mut(words, bytes / 4) };
    let Some(place) = place(words, device_version) else { return false };
    if layout.len() > GPCS {
        return false;
    }
    words[place..place + GPCS + SIZES].fill(0);
    words[place..place + layout.len()].copy_from_slice(layout);
    for (word, size) in words[place + GPCS..].iter_mut().zip(1..=SIZES as i32) {
        *word = at_once(layout, size);
    }
    true
}

/// The number of clusters of this many blocks that run at once, with one block per multiprocessor.
fn at_once(layout: &[i32], size: i32) -> i32 {
    layout.iter().map(|multiprocessors| multiprocessors / size).sum()
}

/// The position of the single GPC that cuDNN assumes: after the device's and the driver's version and at most one more
/// word. It is followed by room for more GPCs, and then by the number of clusters that run at once, or by zeros.
fn place(words: &[i32], device_version: i32) -> Option<usize> {
    let version = words.iter().position(|word| *word == device_version)?;
    let place = (version + 2..version + 4).find(|&place| words.get(place).is_some_and(|word| *word != 0))?;
    let known = words.get(place..place + GPCS + SIZES)?;
    let (gpcs, clusters) = known.split_at(GPCS);
    let one_gpc = (1..=64).contains(&gpcs[0]) && gpcs[1..].iter().all(|word| *word == 0);
    let counted = clusters.iter().zip(1..).all(|(word, size)| *word == at_once(&gpcs[..1], size));
    (one_gpc && (counted || clusters.iter().all(|word| *word == 0))).then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A descriptor's words around the position: versions, this many words, one GPC of 18, and its clusters or zeros.
    fn descriptor(between: usize, counted: bool) -> Vec<i32> {
        let mut words = vec![7, 1024, 900, 13000];
        words.resize(4 + between, 0);
        words.push(18);
        words.resize(words.len() + GPCS - 1, 0);
        words.extend((1..=SIZES as i32).map(|size| if counted { 18 / size } else { 0 }));
        words.push(1145656910);
        words
    }

    #[test]
    fn the_layout_is_written_where_cudnn_has_its_own() {
        for (between, counted) in [(0, false), (1, true)] {
            let mut words = descriptor(between, counted);
            assert_eq!(place(&words, 900), Some(4 + between));
            words[4 + between + 3] = 1;
            assert_eq!(place(&words, 900), None, "something else is there");
        }
        assert_eq!(place(&descriptor(2, false), 900), None);
        assert_eq!(place(&descriptor(0, false), 800), None);
        assert_eq!(place(&descriptor(0, false)[..20], 900), None);
    }

    #[test]
    fn as_many_clusters_run_at_once_as_an_h200_said() {
        let layout = [18, 18, 16, 16, 16, 16, 16, 8, 2, 2, 2, 2];
        let card = [132, 66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7];
        assert_eq!(
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16].map(|size| at_once(&layout, size)),
            card
        );
    }
}
