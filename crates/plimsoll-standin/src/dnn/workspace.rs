//! A model of the workspaces that cuDNN's convolutions request.
//!
//! cuDNN does not document them: they depend on the kernel that its heuristics choose. Their contents were inferred
//! from measurements (`tests/pytorch/workspaces/`, an H200 with cuDNN 9.19):
//!
//! - Kernels on tensor cores work on NHWC. NCHW tensors are copied: input, weights and output, plus 16 bytes. The
//!   weights of a 1×1 kernel are the same in both layouts; without stride and padding such a convolution is a matrix
//!   product that needs no copies.
//! - Channels are padded to full vectors of 16 bytes, so that 3 become 4 or 8; padded tensors are copied even in NHWC.
//!   For few channels and a small window there are kernels without padding, and for `float16` (not `bfloat16`) there
//!   are kernels that use vectors of four.
//! - The weights' gradient is a sum over all positions, split among multiprocessors: each split has its own 32-bit sum.
//! - Kernels without tensor cores copy nothing, except that the weights' gradient of a 3×3 kernel uses Winograd's
//!   F(4×4, 3×3), which stores 36 numbers for each tile of input and output.
//!
//! `tests::the_model_is_as_near_to_the_card_as_the_documents_say` states the model's error.

use super::convolution::{Convolution, Layout, Pass, Precision};

/// Bytes of a sum.
const SUM_BYTES: u64 = 4;
/// Fixed bytes in addition to the copies.
const COPIES_EXTRA_BYTES: u64 = 16;
/// The maximum number of channels that counts as few.
const FEW_CHANNELS: u64 = 4;
/// Input bytes that leave room for the other tensors in an H200's 60 MiB of cache.
const CACHED_BYTES: u64 = 40 << 20;
/// The maximum number of positions in the window of a kernel for few channels: 5×5.
const SMALL_WINDOW: u64 = 25;

impl Convolution {
    /// Workspace bytes of this convolution's plan on a GPU with this many multiprocessors.
    pub(super) fn workspace_bytes(&self, multiprocessors: u64) -> u64 {
        let (few, window) = (self.has_few_channels(), self.window());
        let float = self.precision == Precision::Float;
        match (self.precision, self.layout, self.pass) {
            (Precision::Plain, _, _) => self.without_tensor_cores(),
            (_, Layout::Nchw, Pass::Weights) if self.is_product() => {
                self.x[0] * self.w.iter().product::<u64>() * SUM_BYTES
            }
            (_, Layout::Nchw, _) if self.is_product() => 0,
            (_, Layout::Nchw, Pass::Forward) if few && window <= SMALL_WINDOW => 0,
            (_, _, Pass::Forward) if few && self.is_fp16 && window <= SMALL_WINDOW => 0,
            (_, Layout::Nchw, Pass::Data) if few && (float || window > 128) => 0,
            (_, _, Pass::Weights) if few && float && window <= SMALL_WINDOW => 0,
            (_, _, Pass::Weights) => self.copies_bytes() + self.sums_bytes(multiprocessors),
            _ => self.copies_bytes(),
        }
    }

    /// A matrix product: a 1×1 kernel without stride and padding, on enough positions.
    fn is_product(&self) -> bool {
        self.window() == 1 && self.in_place && self.groups() == 1 && self.positions() >= 64
    }

    /// Bytes of the copies of input, weights and output in NHWC with padded channels, if needed.
    fn copies_bytes(&self) -> u64 {
        let takes_few = self.is_fp16 && self.has_few_channels() && self.pass != Pass::Data;
        let vector = if takes_few { FEW_CHANNELS } else { 16 / self.element_bytes };
        let as_it_is = self.has_few_channels() && self.precision == Precision::Float;
        let fill = |channels: u64| match self.groups() {
            1 if !as_it_is => channels.next_multiple_of(vector),
            _ => channels,
        };
        let (c, k) = (self.x[1], self.w[0]);
        let everything = self.layout == Layout::Nchw;
        let few_output = as_it_is && self.pass != Pass::Forward;
        let mut channels = 0;
        if everything || as_it_is || fill(c) != c {
            channels += self.x.iter().product::<u64>() / c * fill(c);
        }
        if (everything && !self.writes_nchw()) || few_output || fill(k) != k {
            channels += self.y.iter().product::<u64>() / k * fill(k);
        }
        if channels == 0 {
            return 0;
        }
        if self.window() > 1 || !everything {
            channels += fill(k) * (fill(c) / self.groups()) * self.window();
        }
        channels * self.element_bytes + COPIES_EXTRA_BYTES
    }

    /// Whether the output is written in place: 32-bit kernels for a few dozen channels can do so, and cuDNN uses them
    /// while the input fits the cache.
    fn writes_nchw(&self) -> bool {
        let bytes = self.x.iter().product::<u64>() * self.element_bytes;
        (self.precision, self.pass) == (Precision::Float, Pass::Forward)
            && (17..=64).contains(&self.x[1])
            && self.w[0].is_multiple_of(64)
            && bytes <= CACHED_BYTES
    }

    /// The sums of the weights' gradient, one per split. A split gets as many multiprocessors as the gradient has tiles
    /// of 64 or 128 a side; half precision does not split few positions.
    fn sums_bytes(&self, multiprocessors: u64) -> u64 {
        let groups = self.groups();
        let (rows, columns) = (self.w[0] / groups, self.x[1] / groups * self.window());
        let side = if rows.min(columns) <= 64 { 64 } else { 128 };
        let tiles = groups * rows.div_ceil(side) * columns.div_ceil(side);
        let positions = self.y[0] * self.positions();
        let least_positions = match self.precision {
            Precision::Half if rows <= 64 => 1536,
            Precision::Half => 6272,
            _ => 100,
        };
        let bytes = self.w.iter().product::<u64>() * SUM_BYTES;
        if self.precision == Precision::Half && positions < 2 * 6272 {
            0
        } else if tiles <= multiprocessors {
            bytes * (multiprocessors / tiles).min(positions / least_positions)
        } else if 4 * tiles <= 5 * multiprocessors && self.precision == Precision::Float {
            // If there are slightly more tiles than multiprocessors, the sums take only this fraction.
            bytes * multiprocessors / tiles
        } else {
            0
        }
    }

    fn without_tensor_cores(&self) -> u64 {
        let (c, k) = (self.x[1], self.y[1]);
        let one_group = self.groups() == 1;
        match self.pass {
            Pass::Weights if one_group && self.is_three_by_three() && c >= 16 => {
                let tiles = self.y[0] * self.y[2..].iter().map(|side| side.div_ceil(4)).product::<u64>();
                36 * (tiles * (c + k) + c * k) * SUM_BYTES
            }
            Pass::Weights if self.window() == 1 && self.positions() <= 256 => {
                let elements = self.x.iter().product::<u64>() + self.y.iter().product::<u64>();
                elements * self.element_bytes + COPIES_EXTRA_BYTES
            }
            _ => 0,
        }
    }

    fn is_three_by_three(&self) -> bool {
        self.w[2..] == [3, 3] && self.is_dense
    }

    fn groups(&self) -> u64 {
        self.x[1] / self.w[1]
    }

    fn has_few_channels(&self) -> bool {
        self.groups() == 1 && self.x[1] <= FEW_CHANNELS
    }

    /// Positions in the kernel's window.
    fn window(&self) -> u64 {
        self.w[2..].iter().product()
    }

    /// Output positions per image.
    fn positions(&self) -> u64 {
        self.y[2..].iter().product()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: &str = include_str!("../../tests/pytorch/workspaces/convolutions-h200-2.11.0.txt");
    const MULTIPROCESSORS: u64 = 132;

    /// One measurement: the convolution, and the workspaces of its three passes.
    fn read(line: &str) -> [(Convolution, u64); 3] {
        let words: Vec<&str> = line.split(' ').collect();
        let numbers = |word: &str| word.split('x').map(|n| n.parse().unwrap()).collect::<Vec<u64>>();
        let (x, w) = (numbers(words[2]), numbers(words[3]));
        let option = |at: usize| words[at][1..].parse::<u64>().unwrap();
        let (stride, padding, dilation) = (option(4), option(5), option(6));
        let side = |(x, w): (&u64, &u64)| (x + 2 * padding - dilation * (w - 1) - 1) / stride + 1;
        let y = [x[0], w[0]].into_iter().chain(x[2..].iter().zip(&w[2..]).map(side)).collect::<Vec<_>>();
        let (precision, element_bytes) = match words[0] {
            "tf32" => (Precision::Float, 4),
            "fp32" => (Precision::Plain, 4),
            _ => (Precision::Half, 2),
        };
        [(Pass::Forward, 8), (Pass::Data, 9), (Pass::Weights, 10)].map(|(pass, at)| {
            let layout = if words[1] == "nhwc" { Layout::Nhwc } else { Layout::Nchw };
            let (in_place, is_dense) = (stride == 1 && padding == 0, stride == 1 && dilation == 1);
            let (x, w, y) = (x.clone(), w.clone(), y.clone());
            let is_fp16 = words[0] == "fp16";
            let convolution =
                Convolution { pass, precision, element_bytes, is_fp16, layout, x, w, y, in_place, is_dense };
            (convolution, words[at].parse().unwrap())
        })
    }

    /// Over the convolutions with these kernels: the median and the largest error, as a fraction of the bytes of input,
    /// weights and output; the fraction of convolutions with errors above 2 % and above 25 % of those bytes; the ratio
    /// of the model's total bytes to the H200's.
    fn figures(chosen: impl Fn(Precision) -> bool) -> [String; 5] {
        let (mut errors, mut model, mut card) = (Vec::new(), 0, 0);
        for (convolution, bytes) in MEASURED.lines().filter(|line| !line.starts_with('#')).flat_map(read) {
            if chosen(convolution.precision) {
                let modelled = convolution.workspace_bytes(MULTIPROCESSORS);
                let tensors = [&convolution.x, &convolution.w, &convolution.y];
                let elements: u64 = tensors.iter().map(|sizes| sizes.iter().product::<u64>()).sum();
                errors.push(modelled.abs_diff(bytes) as f64 / (elements * convolution.element_bytes) as f64);
                (model, card) = (model + modelled, card + bytes);
            }
        }
        errors.sort_by(f64::total_cmp);
        let (count, worst) = (errors.len(), errors[errors.len() - 1]);
        let within = |most: f64| errors.partition_point(|error| *error <= most) as f64 / count as f64;
        [errors[count / 2], worst, within(0.02), within(0.25), model as f64 / card as f64]
            .map(|figure| format!("{figure:.2}"))
    }

    #[test]
    fn the_model_is_as_near_to_the_card_as_the_documents_say() {
        assert_eq!(
            figures(|precision| precision == Precision::Half),
            ["0.00", "9.61", "0.75", "0.89", "0.97"]
        );
        assert_eq!(
            figures(|precision| precision == Precision::Float),
            ["0.00", "7.72", "0.70", "0.83", "0.97"]
        );
        assert_eq!(
            figures(|precision| precision == Precision::Plain),
            ["0.00", "26.95", "0.83", "0.84", "0.46"]
        );
    }
}
