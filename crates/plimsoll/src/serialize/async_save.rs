//! Saving on a thread while training continues: [`AsyncSave`].

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::state_dict::SerializeError;

/// The path of what was saved, or why it was not.
type Outcome = Result<PathBuf, SerializeError>;

/// A save that a thread writes while training goes on; one at a time. Like the future that
/// `torch.distributed.checkpoint.async_save` returns. Dropping it waits for the save, but its error is then lost: call
/// [`AsyncSave::wait`] at the end of training.
///
/// ```
/// use plimsoll::nn::{Linear, Scope};
/// use plimsoll::serialize::{AsyncSave, Checkpoint};
/// use plimsoll::Device;
/// let model = Linear::new(&Scope::new(&Device::cpu(), 1), 4, 2)?;
/// let path = std::env::temp_dir().join(format!("plimsoll-async-{}.safetensors", std::process::id()));
/// let mut saving = AsyncSave::default();
/// for epoch in 0..3 {
///     // … train …
///     Checkpoint::default().model(&model).value("epoch", epoch).save_async(&path, &mut saving)?;
/// }
/// assert_eq!(saving.wait()?, Some(path.clone()));
/// assert_eq!(Checkpoint::open(&path)?.get("epoch"), Some(&2.into()));
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct AsyncSave(Option<Running>);

#[derive(Debug)]
enum Running {
    Thread(JoinHandle<Outcome>),
    /// No thread could start, so the caller has saved.
    Done(Outcome),
}

impl AsyncSave {
    /// Waits for the previous save, and then runs `save` on a thread. If no thread can start, runs it before this returns.
    ///
    /// # Errors
    /// The error of the previous save, if it has not been returned yet. `save` then does not run; call this again.
    pub fn start(
        &mut self,
        save: impl FnOnce() -> Result<PathBuf, SerializeError> + Send + 'static,
    ) -> Result<(), SerializeError> {
        self.wait()?;
        // Also held here, because a thread that does not start drops its closure.
        let save = Arc::new(Mutex::new(Some(save)));
        let theirs = Arc::clone(&save);
        let thread = thread::Builder::new().name("plimsoll save".to_owned()).spawn(move || run_once(&theirs));
        self.0 = Some(thread.map_or_else(|_| Running::Done(run_once(&save)), Running::Thread));
        Ok(())
    }

    /// Waits for the save in progress. Returns the path of the file or folder; `None` if there was none since the last call.
    ///
    /// # Errors
    /// Why the save failed. What was saved before is unchanged.
    ///
    /// # Panics
    /// If the thread panicked.
    pub fn wait(&mut self) -> Result<Option<PathBuf>, SerializeError> {
        match self.0.take() {
            None => Ok(None),
            Some(Running::Done(outcome)) => outcome.map(Some),
            Some(Running::Thread(thread)) => {
                thread.join().unwrap_or_else(|panic| resume_unwind(panic)).map(Some)
            }
        }
    }

    /// Whether no save is in progress.
    pub fn is_done(&self) -> bool {
        !matches!(&self.0, Some(Running::Thread(thread)) if !thread.is_finished())
    }
}

/// Runs the function, which must not have run before.
fn run_once<F: FnOnce() -> Outcome>(save: &Mutex<Option<F>>) -> Outcome {
    let save = save.lock().unwrap_or_else(PoisonError::into_inner).take();
    save.map_or_else(|| unreachable!("a thread that ran was not refused"), |save| save())
}

impl Drop for AsyncSave {
    fn drop(&mut self) {
        if let Some(Running::Thread(thread)) = self.0.take() {
            // Nobody is left to get an error.
            let _ = thread.join();
        }
    }
}
