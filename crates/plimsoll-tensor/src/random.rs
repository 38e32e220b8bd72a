//! Random numbers: distributions, the independent random streams of a seed, and generators that count streams.
//!
//! The kernels of each device draw the numbers, which are the same on every machine.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use plimsoll_kernels::random::{Distribution, RandomStream};

/// The random number state of a device ([`Device::rng_state`](crate::Device::rng_state)) or of a [`Generator`].
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

/// A source of random numbers that is separate from those of devices. Like `torch.Generator`; clones are the same generator.
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
    /// Makes a generator with this seed.
    pub fn new(seed: u64) -> Generator {
        Generator(Arc::new(Mutex::new(RngState { seed, next_stream: 0 })))
    }

    /// Restarts the generator with `seed`.
    pub fn manual_seed(&self, seed: u64) {
        self.set_state(RngState { seed, next_stream: 0 });
    }

    /// The current state.
    pub fn state(&self) -> RngState {
        *self.locked()
    }

    /// Restores a state of a generator.
    pub fn set_state(&self, state: RngState) {
        *self.locked() = state;
    }

    /// Makes a generator whose numbers are independent of this one's and of other forks', for example one for each worker. A
    /// seed always yields the same sequence of forks.
    pub fn fork(&self) -> Generator {
        let RandomStream { seed, stream } = self.locked().next();
        // Two rounds of SplitMix64: seeds of nearby streams are unrelated.
        Generator::new(mix(mix(seed) ^ stream))
    }

    /// Whether both are the same generator.
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

/// The generator that this thread draws from, unless it draws from the devices' own.
pub(crate) fn current() -> Option<Generator> {
    CURRENT.with_borrow(Clone::clone)
}

/// Runs `f` with `generator` as the source of all random numbers, on any device: tensors, dropout, samples. As the argument
/// `generator` of PyTorch's functions. A [checkpoint](crate::checkpoint) within `f` draws the same numbers in its second
/// run.
pub fn with_generator<T>(generator: &Generator, f: impl FnOnce() -> T) -> T {
    /// Restores the previous generator even if `f` panics.
    struct Restore(Option<Generator>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _before = Restore(CURRENT.replace(Some(generator.clone())));
    f()
}
