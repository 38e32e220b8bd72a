//! Batches of samples whose shapes differ.
//!
//! By default a data set writes its samples straight into the batch, so all have the declared shape: PyTorch's
//! `default_collate`. With [`DataLoader::collate`](super::DataLoader::collate) each sample is a batch of one, of any shape
//! ([`Sample::resize`](super::Sample::resize)), and a function makes one batch of them: [`Pad`], or a function of yours.

use super::{DataError, HostArray, HostBatch, HostElement, HostField, HostValues};

/// Makes a batch of samples, each of which is a batch of one.
pub(super) type Collate = dyn Fn(Vec<HostBatch>) -> Result<HostBatch, DataError> + Send + Sync;

/// Pads shorter samples to the longest of the batch, at the end of each dimension. In PyTorch:
/// `torch.nn.utils.rnn.pad_sequence(batch_first=True)`.
///
/// ```
/// # use std::sync::Arc;
/// # use plimsoll::{DType, data::{DataError, DataLoader, Dataset, Field, Pad, Sample}};
/// /// Sample i is i ones.
/// struct Ones;
///
/// impl Dataset for Ones {
///     fn len(&self) -> usize {
///         3
///     }
///     fn fields(&self) -> Vec<Field> {
///         vec![Field { name: "ones", dtype: DType::I64, shape: vec![0] }]
///     }
///     fn write(&self, index: usize, out: &mut Sample<'_>) -> Result<(), DataError> {
///         out.resize("ones", &[index])?;
///         out.slot::<i64>("ones")?.fill(1);
///         Ok(())
///     }
/// }
/// let pad = Pad::default().value("ones", -100.0);
/// let loader = DataLoader::new(Arc::new(Ones), 3)?.collate(move |samples| pad.collate(&samples));
/// let batch = loader.epoch(0).next().transpose()?.unwrap();
/// assert_eq!(batch.array("ones")?.as_slice(), Some(&[-100i64, -100, 1, -100, 1, 1][..]));
/// # Ok::<(), DataError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Pad {
    values: Vec<(&'static str, f64)>,
}

impl Pad {
    /// Pads this field with `value`, rounded to its type; other fields are padded with 0.
    #[must_use]
    pub fn value(mut self, field: &'static str, value: f64) -> Self {
        self.values.push((field, value));
        self
    }

    /// Makes a batch of samples.
    ///
    /// # Errors
    /// If samples differ in their fields, or a field's number of dimensions; out of host memory.
    pub fn collate(&self, samples: &[HostBatch]) -> Result<HostBatch, DataError> {
        let Some(first) = samples.first() else { return Err(DataError::BatchSize) };
        let named = |at: usize, field: &HostField| {
            let value = self.values.iter().rev().find(|(name, _)| *name == field.name);
            let arrays: Vec<&HostArray> =
                samples.iter().filter_map(|sample| sample.fields.get(at)).map(|field| &field.array).collect();
            let array = padded(field.name, &arrays, value.map_or(0.0, |&(_, value)| value))?;
            Ok(HostField { name: field.name, array })
        };
        let fields = first.fields.iter().enumerate().map(|(at, field)| named(at, field));
        Ok(HostBatch { samples: samples.len(), fields: fields.collect::<Result<_, DataError>>()? })
    }
}

fn padded(name: &'static str, arrays: &[&HostArray], value: f64) -> Result<HostArray, DataError> {
    let first = arrays[0];
    let mut shape = first.shape.clone();
    for array in arrays {
        if array.shape.len() != shape.len() || array.dtype != first.dtype {
            let (first, found) = (first.shape[1..].to_vec(), array.shape[1..].to_vec());
            return Err(DataError::SampleShape { name, declared: first, found });
        }
        for (most, extent) in shape.iter_mut().zip(&array.shape) {
            *most = (*most).max(*extent);
        }
    }
    shape[0] = arrays.len();
    let mut out = HostArray::zeros(first.dtype, shape)?;
    let shape = out.shape.clone();
    macro_rules! each_type {
        ($($variant:ident: $one:expr),*) => {
            match &mut out.values {
                HostValues::Absent => {}
                $(HostValues::$variant(out) => {
                    out.fill($one);
                    place(out, &shape, arrays);
                })*
            }
        };
    }
    each_type!(
        F64: value,
        F32: value as f32,
        F16: plimsoll_tensor::f16::from_f64(value),
        BF16: plimsoll_tensor::bf16::from_f64(value),
        I64: value as i64,
        I32: value as i32,
        I16: value as i16,
        U8: value as u8,
        Bool: value != 0.0
    );
    Ok(out)
}

/// Copies each array to the beginning of its part of `out`, one row of the last dimension at a time.
fn place<T: HostElement>(out: &mut [T], shape: &[usize], arrays: &[&HostArray]) {
    let inner = &shape[1..];
    let each: usize = inner.iter().product();
    for (sample, array) in arrays.iter().enumerate() {
        let Some(values) = array.as_slice::<T>() else { continue };
        let (from, out) = (&array.shape[1..], &mut out[sample * each..][..each]);
        let row = from.last().copied().unwrap_or(1);
        if row == 0 {
            continue;
        }
        for (number, values) in values.chunks_exact(row).enumerate() {
            // The row's offset in `out`: its index in each outer dimension of the array, with the strides of the batch.
            let (mut rest, mut start, mut stride) = (number, 0, 1);
            for dimension in (0..from.len()).rev() {
                if dimension + 1 < from.len() {
                    start += rest % from[dimension] * stride;
                    rest /= from[dimension];
                }
                stride *= inner[dimension];
            }
            out[start..start + row].copy_from_slice(values);
        }
    }
}
