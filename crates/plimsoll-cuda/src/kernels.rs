//! The kernels of a device: compiled from their text, or taken from the folder that keeps machine code, and loaded.

use std::collections::HashMap;
use std::sync::Mutex;

use smallvec::SmallVec;

use crate::cubin::Cubins;
use crate::driver::{Driver, Handle};
use crate::error::Result;
use crate::nvrtc::Nvrtc;
use crate::step::{Launch, Source};
use crate::streams::lock;

/// Dynamic shared memory that every kernel has without asking.
const SHARED_BYTES: u32 = 48 << 10;

/// A kernel that is loaded.
#[derive(Clone, Copy)]
struct Function {
    handle: Handle,
    /// Dynamic shared memory that it was allowed.
    shared_bytes: u32,
}

/// Kernels that are loaded, by the hashes of their sources; where two share a hash, the sources decide.
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
    /// None yet; machine code is kept where the environment says.
    pub(crate) fn from_env() -> Kernels {
        Kernels { loaded: Mutex::default(), cubins: Cubins::from_env() }
    }

    /// The kernel of a launch, compiled and loaded when it is first asked for. The lock is not held while it compiles, so that
    /// several threads do so at once. `nvrtc` opens the compiler.
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
