//! Observers of a running job: [`Watch`].

use plimsoll::Device;

use super::job::Place;

/// The events of a running job. All methods are optional.
pub(crate) trait Watch {
    /// The job resumes from a checkpoint.
    fn resumed(&mut self, place: Place) {
        let _ = place;
    }

    /// A step on this many samples is done. `loss` is `Some` if the device has values.
    fn step(&mut self, place: Place, samples: usize, loss: Option<f32>, device: &Device) {
        let _ = (place, samples, loss, device);
    }

    /// An epoch (or its last part, after a resume) is done, with its mean loss and its test result.
    fn epoch(&mut self, place: Place, loss: Option<f64>, score: Option<f64>, device: &Device) {
        let _ = (place, loss, score, device);
    }

    /// All later epochs would repeat earlier ones: see Note [Repeating epochs].
    fn repeats(&mut self, place: Place) {
        let _ = place;
    }

    /// A message for the user.
    fn note(&mut self, line: &str) {
        let _ = line;
    }

    /// The job is done. Its model and optimizer still exist.
    fn end(&mut self, device: &Device) {
        let _ = device;
    }
}

/// No observer.
impl Watch for () {}

/// Two observers.
impl<A: Watch, B: Watch> Watch for (A, B) {
    fn resumed(&mut self, place: Place) {
        self.0.resumed(place);
        self.1.resumed(place);
    }

    fn step(&mut self, place: Place, samples: usize, loss: Option<f32>, device: &Device) {
        self.0.step(place, samples, loss, device);
        self.1.step(place, samples, loss, device);
    }

    fn epoch(&mut self, place: Place, loss: Option<f64>, score: Option<f64>, device: &Device) {
        self.0.epoch(place, loss, score, device);
        self.1.epoch(place, loss, score, device);
    }

    fn repeats(&mut self, place: Place) {
        self.0.repeats(place);
        self.1.repeats(place);
    }

    fn note(&mut self, line: &str) {
        self.0.note(line);
        self.1.note(line);
    }

    fn end(&mut self, device: &Device) {
        self.0.end(device);
        self.1.end(device);
    }
}
