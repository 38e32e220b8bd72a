//! The kernels of a device, compiled from their text or read from the cache of machine code, and loaded.

use std::collections::HashMap;
use std::sync::Mutex;

use smallvec::SmallVec;

use crate::cubin::Cubins;
use crate::driver::{Driver, Handle};
use crate::error::Result;
use crate::nvrtc::Nvrtc;
use crate::step::{Launch, Source};
use crate::streams::lock;

/// The dynamic shared memory that every kernel may use by default.
const SHARED_BYTES: u32 = 48 << 10;

/// A loaded kernel.
#[derive(Clone, Copy)]
struct Function {
    handle: Handle,
    /// The dynamic shared memory that it is allowed to use.
    shared_bytes: u32,
}

/// Loaded kernels, by the hashes of their sources. If two share a hash, the sources are compared.
#[derive(Default)]
struct Loaded(HashMap<u64, SmallVec<[(Source, Function); 1]>>);

impl Loaded {
    fn get(&mut self, source: &Source) -> Option<&mut Function> {
        let known = self.0.get_mut(&source.hash())?;
        known.iter_mut().find(|(known, _)| known.is(source)).map(|(_, function)| function)
    }

    fn insert(&mut self, source: &Source, function: Function) {
        self.0.entry(source.hash()).or_default().push((source.clone(), function));
    }
}

/// The kernels of a device.
pub(crate) struct Kernels {
    loaded: Mutex<Loaded>,
    cubins: Cubins,
}

impl Kernels {
    /// No kernels yet; the environment determines the cache folder of machine code.
    pub(crate) fn from_env() -> Kernels {
        Kernels { loaded: Mutex::default(), cubins: Cubins::from_env() }
    }

    /// Returns the kernel of a launch, compiling and loading it on first use. The lock is not held during this work, so
    /// several threads can compile concurrently. `nvrtc` opens the compiler.
    pub(crate) fn get<'a>(
        &self,
        launch: &Launch,
        driver: &Driver,
        capability: (i32, i32),
        nvrtc: impl FnOnce() -> Result<&'a Nvrtc>,
    ) -> Result<Handle> {
        if let Some(function) = lock(&self.loaded).get(&launch.source) {
            if launch.shared_bytes > function.shared_bytes {
                driver.allow_shared(function.handle, launch.shared_bytes)?;
                function.shared_bytes = launch.shared_bytes;
            }
            return Ok(function.handle);
        }
        let handle = driver.load(&self.compiled(&launch.source, capability, nvrtc()?)?, c"kernel")?;
        if launch.shared_bytes > SHARED_BYTES {
            driver.allow_shared(handle, launch.shared_bytes)?;
        }
        let function = Function { handle, shared_bytes: launch.shared_bytes.max(SHARED_BYTES) };
        lock(&self.loaded).insert(&launch.source, function);
        Ok(handle)
    }

    fn compiled(&self, source: &Source, (major, minor): (i32, i32), nvrtc: &Nvrtc) -> Result<Vec<u8>> {
        let text = source.full_text();
        let specific = if source.is_arch_specific { "a" } else { "" };
        let arch = format!("sm_{major}{minor}{specific}");
        let (nvrtc_major, nvrtc_minor) = nvrtc.version();
        let compiled_for = format!("{arch}-{nvrtc_major}.{nvrtc_minor}");
        if let Some(code) = self.cubins.get(&text, &compiled_for) {
            return Ok(code);
        }
        let code = nvrtc.compile(source.name, &text, &arch)?;
        self.cubins.put(&text, &compiled_for, &code);
        Ok(code)
    }
}
