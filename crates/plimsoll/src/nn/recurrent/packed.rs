//! Sequences of unequal lengths without padding: [`PackedSequence`].

use plimsoll_tensor::{DType, Error, Result, Tensor};

/// The sequences of one batch, stored step by step. Each step has a row for each sequence that is long enough, the longest
/// sequence first. Like `torch.nn.utils.rnn.PackedSequence`.
///
/// ```
/// use plimsoll::nn::PackedSequence;
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let padded = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 0.0, 0.0], &[2, 3, 1], &device)?; // batch, steps, inputs
/// let packed = PackedSequence::pack_padded(&padded, &[3, 1], true)?;
/// assert_eq!(packed.data().to_vec::<f32>()?, [1.0, 4.0, 2.0, 3.0]);
/// assert_eq!(packed.batch_sizes(), [2, 1, 1]);
/// let (again, lengths) = packed.pad(true, 0.0, None)?;
/// assert_eq!((again.to_vec::<f32>()?, lengths), (padded.to_vec::<f32>()?, vec![3, 1]));
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PackedSequence {
    data: Tensor,
    batch_sizes: Vec<usize>,
    /// The original index of each sequence, the longest sequence first.
    order: Vec<usize>,
}

const NAME: &str = "pack_padded_sequence";

impl PackedSequence {
    /// Packs the steps of `padded`, `[steps, batch, …]` or `[batch, steps, …]` with `batch_first`, without the padding. The
    /// sequences may be in any order. Like `pack_padded_sequence(enforce_sorted=False)`.
    ///
    /// # Errors
    /// If the number of lengths is not the number of sequences, a length is not between 1 and the number of steps, or
    /// memory runs out.
    pub fn pack_padded(padded: &Tensor, lengths: &[usize], batch_first: bool) -> Result<PackedSequence> {
        if padded.rank() < 2 {
            let message = format!("{:?}: needs [steps, batch, …]", padded.shape());
            return Err(Error::Shape { op: NAME, message });
        }
        let x = if batch_first { padded.clone() } else { padded.transpose(0, 1)? };
        let (batch, steps) = (x.shape()[0], x.shape()[1]);
        if lengths.len() != batch || lengths.iter().any(|len| !(1..=steps).contains(len)) {
            let message =
                format!("lengths {lengths:?} of {batch} sequences: needs one for each, from 1 to {steps}");
            return Err(Error::Argument { op: NAME, message });
        }
        let mut order: Vec<usize> = (0..batch).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(lengths[i]));
        let longest = order.first().map_or(0, |&i| lengths[i]);
        let batch_sizes: Vec<usize> =
            (0..longest).map(|step| lengths.iter().filter(|&&len| len > step).count()).collect();
        // For each packed row, its index in the padded tensor.
        let places: Vec<i64> = (0..longest)
            .flat_map(|step| order[..batch_sizes[step]].iter().map(move |&i| (i * steps + step) as i64))
            .collect();
        let places = Tensor::from_slice(&places, &[places.len()], x.device())?;
        let data = x.flatten(0, 1)?.index_select(0, &places)?;
        Ok(PackedSequence { data, batch_sizes, order })
    }

    /// Packs sequences `[length, …]`. Like `pack_sequence(enforce_sorted=False)`.
    ///
    /// # Errors
    /// If there are no sequences, one is empty, their other dimensions or types differ, or memory runs out.
    pub fn pack(sequences: &[&Tensor]) -> Result<PackedSequence> {
        let padded = Tensor::pad_sequence(sequences, true, 0.0)?;
        let lengths: Vec<usize> = sequences.iter().map(|x| x.shape()[0]).collect();
        PackedSequence::pack_padded(&padded, &lengths, true)
    }

    /// The rows: all sequences' first steps, then their second, `[rows, …]`.
    pub fn data(&self) -> &Tensor {
        &self.data
    }

    /// The number of sequences that have each step.
    pub fn batch_sizes(&self) -> &[usize] {
        &self.batch_sizes
    }

    /// The original index of each sequence, the longest sequence first. Like `sorted_indices`.
    pub fn sorted_indices(&self) -> &[usize] {
        &self.order
    }

    /// The length of each sequence, in the original order.
    pub fn lengths(&self) -> Vec<usize> {
        let mut lengths = vec![0; self.order.len()];
        for (place, &i) in self.order.iter().enumerate() {
            lengths[i] = self.batch_sizes.iter().filter(|&&size| size > place).count();
        }
        lengths
    }

    /// The same sequences with other rows, such as the output of a layer.
    ///
    /// # Errors
    /// If the number of rows differs.
    pub fn with_data(&self, data: Tensor) -> Result<PackedSequence> {
        if data.shape().first() != self.data.shape().first() {
            let message = format!("data {:?} for {} rows", data.shape(), self.data.shape()[0]);
            return Err(Error::Shape { op: NAME, message });
        }
        Ok(PackedSequence { data, ..self.clone() })
    }

    /// Returns the sequences in the original order, padded with `padding` to the longest or to `total_length`, and their lengths.
    /// Like `pad_packed_sequence`.
    ///
    /// # Errors
    /// If a total length is less than the longest, or memory runs out.
    pub fn pad(
        &self,
        batch_first: bool,
        padding: f64,
        total_length: impl Into<Option<usize>>,
    ) -> Result<(Tensor, Vec<usize>)> {
        let longest = self.batch_sizes.len();
        let steps = total_length.into().unwrap_or(longest);
        if steps < longest {
            let message = format!("a total length of {steps} is less than the longest sequence, {longest}");
            return Err(Error::Argument { op: "pad_packed_sequence", message });
        }
        let (batch, lengths) = (self.order.len(), self.lengths());
        let mut place_of = vec![0; batch];
        self.order.iter().enumerate().for_each(|(place, &i)| place_of[i] = place);
        let starts: Vec<usize> =
            self.batch_sizes.iter().scan(0, |sum, size| Some(std::mem::replace(sum, *sum + size))).collect();
        let rows = self.data.shape()[0];
        // For each position of the padded tensor, its packed row; past a sequence's end, the last row, which is padding.
        let row = |i: usize, step: usize| if step < lengths[i] { starts[step] + place_of[i] } else { rows };
        let places: Vec<i64> = match batch_first {
            true => (0..batch)
                .flat_map(|i| (0..steps).map(move |step| (i, step)))
                .map(|(i, step)| row(i, step) as i64)
                .collect(),
            false => (0..steps)
                .flat_map(|step| (0..batch).map(move |i| (i, step)))
                .map(|(i, step)| row(i, step) as i64)
                .collect(),
        };
        let places = Tensor::from_slice(&places, &[places.len()], self.data.device())?;
        let mut shape = self.data.shape().to_vec();
        shape[0] = 1;
        let filler = Tensor::full(&shape, padding, self.data.dtype(), self.data.device())?;
        let padded = Tensor::cat(&[&self.data, &filler], 0)?.index_select(0, &places)?;
        let mut sizes = if batch_first { vec![batch, steps] } else { vec![steps, batch] };
        sizes.extend(&self.data.shape()[1..]);
        Ok((padded.reshape(sizes.as_slice())?, lengths))
    }

    /// Reorders `[…, batch, …]` along a dimension, from the original order of the sequences to the packed order or back.
    pub(super) fn reorder(&self, state: &Tensor, dim: isize, to: Order) -> Result<Tensor> {
        let mut index: Vec<i64> = self.order.iter().map(|&i| i as i64).collect();
        if to == Order::AsGiven {
            self.order.iter().enumerate().for_each(|(place, &i)| index[i] = place as i64);
        }
        if index.windows(2).all(|pair| pair[0] < pair[1]) {
            return Ok(state.clone());
        }
        state.index_select(dim, &Tensor::from_slice(&index, &[index.len()], state.device())?)
    }

    /// Groups consecutive steps that have the same number of sequences.
    pub(super) fn equal_steps(&self) -> Vec<EqualSteps> {
        let mut equal_steps: Vec<EqualSteps> = Vec::new();
        let mut row = 0;
        for &batch in &self.batch_sizes {
            match equal_steps.last_mut() {
                Some(last) if last.batch == batch => last.steps += 1,
                _ => equal_steps.push(EqualSteps { row, steps: 1, batch }),
            }
            row += batch;
        }
        equal_steps
    }

    pub(super) fn batch(&self) -> usize {
        self.order.len()
    }

    pub(super) fn want_float(&self, op: &'static str) -> Result<DType> {
        let dtype = self.data.dtype();
        match dtype.is_float() {
            true => Ok(dtype),
            false => Err(Error::DType { op, expected: "a floating-point type", got: dtype }),
        }
    }
}

/// The order of sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    LongestFirst,
    AsGiven,
}

/// Consecutive steps with the same number of sequences.
#[derive(Clone, Copy, Debug)]
pub(super) struct EqualSteps {
    pub(super) row: usize,
    pub(super) steps: usize,
    pub(super) batch: usize,
}
