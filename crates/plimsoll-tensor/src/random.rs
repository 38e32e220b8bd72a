//! Which random numbers: a distribution, one of many independent streams of a seed, and generators that count streams.
//!
//! What a device draws from them is its kernel's matter ; the numbers are the same on every
//! machine.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use plimsoll_kernels::random::{Distribution, RandomStream};

/// Where random numbers stand: of a device ([`Device::rng_state`](crate::Device::rng_state)) or of a [`Generator`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RngState {
    /// The seed.
    pub seed: u64,
    /// The random stream, within this seed, for the next random tensor.
    pub next_stream: u64,
}

impl RngState {
    fn next(&mut self) -> RandomStream {
        let RngState { seed, next_stream: stream } = *self;
        self.next_stream += 1;
        RandomStream { seed, stream }
    }
}

/// A source of random numbers apart from the devices' own. As `torch.Generator`; clones are the same generator.
///
/// ```
/// use plimsoll_tensor::{Device, Generator, Tensor, with_generator};
/// let (device, generator) = (Device::cpu(), Generator::new(7));
/// let state = generator.state();
/// let draw = || with_generator(&generator, || Tensor::randn(&[3], &device)).and_then(|x| x.to_vec::<f32>());
/// let first = draw()?;
/// assert_ne!(draw()?, first);
/// generator.set_state(state);
/// assert_eq!(draw()?, first);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Generator(Arc<Mutex<RngState>>);

impl Generator {
    /// A generator at the beginning of a seed.
    pub fn new(seed: u64) -> Generator {
        Generator(Arc::new(Mutex::new(RngState { seed, next_stream: 0 })))
    }

    /// Starts over from `seed`.
    pub fn manual_seed(&self, seed: u64) {
        self.set_state(RngState { seed, next_stream: 0 });
    }

    /// Where it stands.
    pub fn state(&self) -> RngState {
        *self.locked()
    }

    /// Goes on from where a generator stood.
    pub fn set_state(&self, state: RngState) {
        *self.locked() = state;
    }

    /// A generator of its own, whose numbers are independent of this one's and of those of other forks: one for each worker,
    /// say. The forks of a seed are the same each time, in their order.
    pub fn fork(&self) -> Generator {
        let RandomStream { seed, stream } = self.locked().next();
        // Two rounds of SplitMix64: seeds of nearby streams have nothing in common.
        Generator::new(mix(mix(seed) ^ stream))
    }

    /// Whether it is the same generator.
    pub(crate) fn is(&self, other: &Generator) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn next(&self) -> RandomStream {
        self.locked().next()
    }

    fn locked(&self) -> MutexGuard<'_, RngState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One round of SplitMix64.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

thread_local! {
    static CURRENT: RefCell<Option<Generator>> = const { RefCell::new(None) };
}

/// The generator that this thread draws from, if not from the devices' own.
pub(crate) fn current() -> Option<Generator> {
    CURRENT.with_borrow(Clone::clone)
}

/// Runs `f`; what it draws, on any device, comes from `generator`: tensors, dropout, samples. As the argument `generator` of
/// PyTorch's functions. A [checkpoint](crate::checkpoint) inside of it draws the same numbers in its second run.
pub fn with_generator<T>(generator: &Generator, f: impl FnOnce() -> T) -> T {
    /// Also when `f` panics.
    struct Restore(Option<Generator>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _before = Restore(CURRENT.replace(Some(generator.clone())));
    f()
}
