//! Samples images at the points of a grid (`grid_sample`), and makes grids from affine maps (`affine_grid`). Composed of other
//! operations; only the image and the grid are saved for the backward pass, which recomputes everything else.

use crate::caller::Entry;
use crate::checkpoint::checkpoint;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::operator::Meta;
use crate::ops::want_same;
use crate::tensor::Tensor;

const NAME: &str = "grid_sample";

/// How an image is interpolated between its elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GridSampleMode {
    /// Linearly between the neighbours along each dimension.
    #[default]
    Bilinear,
    /// The nearest element. The grid has no gradient.
    Nearest,
    /// By cubic convolution of four elements along each of two dimensions.
    Bicubic,
}

/// The values of an image outside its borders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GridPadding {
    /// Zeros.
    #[default]
    Zeros,
    /// The nearest border element.
    Border,
    /// The image, reflected at its border.
    Reflection,
}

/// The options of [`Tensor::grid_sample`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GridSampleOptions {
    /// The interpolation between elements.
    pub mode: GridSampleMode,
    /// The values outside the image.
    pub padding_mode: GridPadding,
    /// Whether -1 and 1 refer to the centres of the corner elements; otherwise to their outer edges.
    pub align_corners: bool,
}

/// One spatial dimension of an image.
#[derive(Clone, Copy)]
struct Axis {
    size: usize,
    options: GridSampleOptions,
}

impl Axis {
    /// Converts grid coordinates from -1 to 1 into positions in elements.
    #[track_caller]
    fn place(self, grid: &Tensor) -> Result<Tensor> {
        let size = self.size as f64;
        match self.options.align_corners {
            true => grid.add_scalar(1.0)?.mul_scalar((size - 1.0) / 2.0),
            false => grid.add_scalar(1.0)?.affine(size / 2.0, -0.5),
        }
    }

    /// Maps a position outside the image to the position inside that it reads. As in PyTorch, no gradient flows at the border.
    #[track_caller]
    fn inside(self, place: &Tensor) -> Result<Tensor> {
        let last = self.size as f64 - 1.0;
        match self.options.padding_mode {
            GridPadding::Zeros => Ok(place.clone()),
            GridPadding::Border => place.hardtanh(0.0, last),
            GridPadding::Reflection => {
                let (low, span) =
                    if self.options.align_corners { (0.0, last) } else { (-0.5, self.size as f64) };
                if span == 0.0 {
                    return place.mul_scalar(0.0);
                }
                let distance = place.add_scalar(-low)?.abs()?;
                let flips = distance.detach().div_scalar(span)?.floor()?;
                let rest = distance.sub(&flips.mul_scalar(span)?)?;
                let odd = flips.remainder_scalar(2.0)?.eq_scalar(1.0)?;
                odd.where_cond(&rest.affine(-1.0, span + low)?, &rest.add_scalar(low)?)?.hardtanh(0.0, last)
            }
        }
    }

    /// Converts an integer position to an index, and returns whether it is inside the image.
    #[track_caller]
    fn index(self, place: &Tensor) -> Result<(Tensor, Tensor)> {
        let last = self.size as f64 - 1.0;
        let inside = place.ge_scalar(0.0)?.logical_and(&place.le_scalar(last)?)?;
        let index = place.nan_to_num(0.0, None, None)?.clamp(0.0, last)?.to_dtype(DType::I64)?;
        Ok((index, inside))
    }

    /// The elements that a sample is computed from: for each, its index, whether it is inside the image, and its weight.
    #[track_caller]
    fn taps(self, grid: &Tensor) -> Result<Vec<(Tensor, Tensor, Option<Tensor>)>> {
        let place = self.place(grid)?;
        let tap = |place: Tensor, weight: Option<Tensor>| {
            let (index, inside) = self.index(&place)?;
            Ok((index, inside, weight))
        };
        match self.options.mode {
            GridSampleMode::Nearest => Ok(vec![tap(self.inside(&place.detach())?.round()?, None)?]),
            GridSampleMode::Bilinear => {
                let place = self.inside(&place)?;
                let low = place.detach().floor()?;
                let part = place.sub(&low)?;
                let rest = part.affine(-1.0, 1.0)?;
                Ok(vec![tap(low.clone(), Some(rest))?, tap(low.add_scalar(1.0)?, Some(part))?])
            }
            GridSampleMode::Bicubic => {
                let low = place.detach().floor()?;
                let part = place.sub(&low)?;
                let rest = part.affine(-1.0, 1.0)?;
                let weights =
                    [far(&part.add_scalar(1.0)?)?, near(&part)?, near(&rest)?, far(&rest.add_scalar(1.0)?)?];
                let taps = weights.into_iter().zip([-1.0, 0.0, 1.0, 2.0]);
                taps.map(|(weight, step)| tap(self.inside(&low.add_scalar(step)?)?.round()?, Some(weight)))
                    .collect()
            }
        }
    }
}

/// The coefficient of cubic convolution that PyTorch uses.
const SLOPE: f64 = -0.75;

/// The weight of an element at a distance of at most 1.
#[track_caller]
fn near(x: &Tensor) -> Result<Tensor> {
    let square = x.mul(x)?;
    x.affine(SLOPE + 2.0, -(SLOPE + 3.0))?.mul(&square)?.add_scalar(1.0)
}

/// The weight of an element at a distance of 1 to 2.
#[track_caller]
fn far(x: &Tensor) -> Result<Tensor> {
    let first = x.affine(SLOPE, -5.0 * SLOPE)?;
    first.mul(x)?.add_scalar(8.0 * SLOPE)?.mul(x)?.add_scalar(-4.0 * SLOPE)
}

/// The samples: a sum over the taps of all dimensions.
#[track_caller]
fn sample(x: &Tensor, grid: &Tensor, options: GridSampleOptions) -> Result<Tensor> {
    let (sizes, lead) = (&x.shape()[2..], &x.shape()[..2]);
    let places = &grid.shape()[1..grid.rank() - 1];
    let count: usize = places.iter().product();
    let flat = x.reshape(&[lead[0], lead[1], sizes.iter().product()])?;
    let mut taps: Vec<(Tensor, Tensor, Option<Tensor>)> = Vec::new();
    for (dim, &size) in sizes.iter().enumerate() {
        // The last coordinate of the grid belongs to the first dimension.
        let grid = grid.select(-1, (sizes.len() - 1 - dim) as isize)?.reshape(&[lead[0], count])?;
        let own = Axis { size, options }.taps(&grid)?;
        if taps.is_empty() {
            taps = own;
            continue;
        }
        let mut both = Vec::with_capacity(taps.len() * own.len());
        for (index, inside, weight) in &taps {
            for (next, next_inside, next_weight) in &own {
                let weight = match (weight, next_weight) {
                    (Some(a), Some(b)) => Some(a.mul(b)?),
                    _ => None,
                };
                let index = index.mul_scalar(size as i64)?.add(next)?;
                both.push((index, inside.logical_and(next_inside)?, weight));
            }
        }
        taps = both;
    }
    let mut sum: Option<Tensor> = None;
    for (index, inside, weight) in &taps {
        let index = index.unsqueeze(1)?.expand(&[lead[0], lead[1], count])?;
        let weight = match weight {
            Some(weight) => weight.masked_fill(&inside.logical_not()?, 0.0)?,
            None => inside.to_dtype(x.dtype())?,
        };
        let part = flat.gather(2, &index)?.mul(&weight.unsqueeze(1)?)?;
        sum = Some(match sum {
            None => part,
            Some(sum) => sum.add(&part)?,
        });
    }
    let sum = sum.ok_or_else(|| Error::shape(NAME, "an image without dimensions"))?;
    sum.reshape([lead, places].concat().as_slice())
}

impl Tensor {
    /// Samples images `[batch, channels, height, width]` at the points of a grid `[batch, height, width, 2]`, given as `(x, y)`
    /// from -1 to 1. Images with a depth dimension are sampled at `(x, y, z)`. Like `torch.nn.functional.grid_sample`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, GridSampleOptions, Tensor};
    /// let device = Device::cpu();
    /// let image = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2], &device)?;
    /// let middle = Tensor::zeros(&[1, 1, 1, 2], &device)?;
    /// assert_eq!(image.grid_sample(&middle, GridSampleOptions::default())?.item::<f32>()?, 2.5);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the shapes are incompatible, the images have no elements, the dtypes differ, bicubic sampling is used in
    /// three dimensions, or memory runs out.
    #[track_caller]
    pub fn grid_sample(&self, grid: impl AsRef<Tensor>, options: GridSampleOptions) -> Result<Tensor> {
        let _entry = Entry::here();
        let grid = grid.as_ref();
        let spatial = self.rank().saturating_sub(2);
        let fits = matches!(spatial, 2 | 3)
            && grid.rank() == self.rank()
            && grid.shape()[0] == self.shape()[0]
            && grid.shape().last() == Some(&spatial);
        if !fits {
            let message = format!(
                "{:?} at a grid {:?}: needs [batch, channels, h, w] and [batch, …, 2], or one dimension more",
                self.shape(),
                grid.shape()
            );
            return Err(Error::shape(NAME, message));
        }
        if self.shape()[2..].contains(&0) {
            return Err(Error::shape(NAME, format!("{:?} has no elements to sample", self.shape())));
        }
        if options.mode == GridSampleMode::Bicubic && spatial == 3 {
            return Err(Error::argument(NAME, "bicubic sampling needs images with two dimensions"));
        }
        let metas = [self, grid].map(|x| (x.data().layout.clone(), x.dtype()));
        want_same(NAME, &metas.each_ref().map(|(layout, dtype)| Meta { layout, dtype: *dtype }))?;
        checkpoint(move |ins: &[Tensor]| sample(&ins[0], &ins[1], options), &[self, grid])
    }

    /// Makes the grid of an affine map for [`Tensor::grid_sample`] from matrices `[batch, 2, 3]` and the size of the images,
    /// `[batch, channels, height, width]`. With a depth dimension, the matrices are `[batch, 3, 4]`. Like
    /// `torch.nn.functional.affine_grid`.
    ///
    /// # Errors
    /// If the shapes are incompatible, or memory runs out.
    #[track_caller]
    pub fn affine_grid(&self, size: &[usize], align_corners: bool) -> Result<Tensor> {
        let _entry = Entry::here();
        let spatial = size.len().saturating_sub(2);
        if !matches!(spatial, 2 | 3) || self.shape() != [size[0], spatial, spatial + 1] {
            let message = format!(
                "matrices {:?} for images {size:?}: needs [batch, 2, 3], or [batch, 3, 4] with a depth",
                self.shape()
            );
            return Err(Error::shape("affine_grid", message));
        }
        let places = &size[2..];
        let mut columns: Vec<Tensor> = Vec::new();
        for (dim, &count) in places.iter().enumerate().rev() {
            let line = match count {
                1 => Tensor::zeros(&[1], self.device())?,
                _ => Tensor::linspace(-1.0, 1.0, count, self.device())?,
            };
            let line = line.to_dtype(self.dtype())?;
            let line = match align_corners {
                true => line,
                false => line.mul_scalar((count as f64 - 1.0) / count as f64)?,
            };
            let mut shape = vec![1; spatial];
            shape[dim] = count;
            columns.push(line.reshape(shape.as_slice())?.expand(places)?.reshape(&[-1])?);
        }
        columns.push(columns[0].ones_like()?);
        let base = Tensor::stack(&columns.iter().collect::<Vec<_>>(), 1)?.unsqueeze(0)?;
        let count: usize = places.iter().product();
        let base = base.expand(&[size[0], count, spatial + 1])?;
        base.bmm(&self.transpose(1, 2)?)?.reshape([&[size[0]], places, &[spatial]].concat().as_slice())
    }
}
