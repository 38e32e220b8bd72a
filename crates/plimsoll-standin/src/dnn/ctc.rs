//! cuDNN's CTC loss. The workspace formula matches an H200 (`tests/pytorch/workspaces/libraries-h200-2.11.0.txt`) to
//! the byte in 12 of 12 cases. For each sample the workspace holds the gradients of all letters, two tables over steps
//! and positions of the blank-extended label, and the label itself.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard};

use super::asked;
use super::tensor::Tensor;
use crate::argument::{Out, little_endian};
use crate::call::{calls, makers, nothing};
use crate::error::Outcome;
use crate::lock::locked;
use crate::stream::work;

/// The longest label, by loss descriptor.
static LONGEST: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

fn longest() -> MutexGuard<'static, BTreeMap<u64, u64>> {
    locked(&LONGEST)
}

/// The size of a loss.
#[derive(Debug, Clone, Copy)]
struct Loss {
    steps: u64,
    samples: u64,
    letters: u64,
}

impl Loss {
    /// # Errors
    ///
    /// `InvalidHandle` or `InvalidValue` unless the descriptor describes steps, samples and letters.
    fn of(probabilities: u64) -> Outcome<Loss> {
        let [steps, samples, letters] = Tensor::of(probabilities)?.dimensions()?;
        Ok(Loss { steps, samples, letters })
    }

    /// Workspace bytes for this many steps and labels of at most this many letters.
    fn bytes(self, steps: u64, label: u64) -> u64 {
        let places = 2 * label + 1;
        self.samples * (4 * self.steps * self.letters + 8 * steps * places + 4 * places)
    }

    /// Workspace bytes if the labels are on the host.
    fn host_bytes(self, steps: u64, label: u64) -> u64 {
        self.bytes(steps, label) + self.samples * (4 * label + 16)
    }

    /// Workspace bytes if the labels are on the device, so that their lengths are unknown.
    fn device_bytes(self, label: u64) -> u64 {
        self.bytes(self.steps, label) + self.samples * 8
    }
}

calls! { Dnn:
    fn cudnnSetCTCLossDescriptor_v9(
        descriptor: u64, _precision: c_int, _normalization: c_int, _gradient: c_int, label: c_int,
    ) {
        longest().insert(descriptor, label.unsigned_abs().into());
        Ok(())
    }
    fn cudnnDestroyCTCLossDescriptor(descriptor: u64) {
        longest().remove(&descriptor);
        Ok(())
    }
    fn cudnnGetCTCLossWorkspaceSize(
        _handle: u64, probabilities: u64, _gradients: u64, _labels: u64, label_lengths: Out<u8>, input_lengths: Out<u8>,
        _algorithm: c_int, _descriptor: u64, bytes: Out<u64>,
    ) {
        let loss = Loss::of(probabilities)?;
        let most = |lengths: Out<u8>| -> Outcome<u64> {
            let lengths = lengths.get_bytes(4 * loss.samples as usize)?;
            Ok(lengths.chunks(4).map(little_endian).map(i64::unsigned_abs).max().unwrap_or(0))
        };
        let (label, steps) = (most(label_lengths)?, most(input_lengths)?);
        bytes.put(asked(|| loss.host_bytes(steps, label)))
    }
    fn cudnnGetCTCLossWorkspaceSize_v8(
        _handle: u64, _algorithm: c_int, descriptor: u64, probabilities: u64, _gradients: u64, bytes: Out<u64>,
    ) {
        let label = longest().get(&descriptor).copied().unwrap_or(0);
        let loss = Loss::of(probabilities)?;
        bytes.put(asked(|| loss.device_bytes(label)))
    }
}

makers! { Dnn: cudnnCreateCTCLossDescriptor }

nothing! { Dnn: cudnnSetCTCLossDescriptorEx }

work! { Dnn: cudnnCTCLoss cudnnCTCLoss_v8 }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_the_cards_to_the_byte() {
        let measured = include_str!("../../tests/pytorch/workspaces/libraries-h200-2.11.0.txt");
        let lines: Vec<&str> = measured.lines().filter(|line| line.starts_with("CTC ")).collect();
        assert_eq!(lines.len(), 12);
        for line in lines {
            let words: Vec<u64> = line.split(' ').skip(1).map(|word| word.parse().unwrap()).collect();
            let loss = Loss { steps: words[0], samples: words[1], letters: words[2] };
            assert_eq!([loss.host_bytes(words[4], words[3]), loss.device_bytes(255)], words[5..7], "{line}");
        }
    }
}
