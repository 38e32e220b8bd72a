//! cuDNN's recurrent networks: where each matrix lies in the weights, what is kept for the backward pass, and a model of
//! the workspace. The formulas are those that the figures of an H200 follow (`tests/pytorch/workspaces/`): weights and
//! what is kept exactly (but for some bytes of alignment under dropout), the workspace nearly.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard};

use super::asked;
use super::tensor::Tensor;
use crate::argument::{Out, little_endian};
use crate::call::calls;
use crate::error::{Failure, Outcome};
use crate::gpu::setup;

/// Bytes of state of each thread's generator.
const GENERATOR_BYTES: u64 = 24;
/// What is kept beside the gates.
const KEPT_EXTRA_BYTES: u64 = 256;
/// What the products of each layer and direction have for themselves.
const PRODUCTS_BYTES: u64 = 8 << 20;
/// `CUDNN_LSTM` and `CUDNN_GRU`; the other cells are plain.
const LSTM: c_int = 2;
const GRU: c_int = 3;
/// `CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED`.
const PACKED: c_int = 1;

/// A network, by its descriptor.
#[derive(Debug, Clone, Copy)]
struct Network {
    cell: c_int,
    element_bytes: u64,
    inputs: u64,
    hidden: u64,
    /// Width of an output: `hidden`, or what it is projected to.
    width: u64,
    layers: u64,
    directions: u64,
    dropout: bool,
}

/// What descriptors were given: networks; positions of sequences; dropout, whether there is any.
#[derive(Debug)]
struct Known {
    networks: BTreeMap<u64, Network>,
    positions: BTreeMap<u64, u64>,
    dropouts: BTreeMap<u64, bool>,
}

static KNOWN: Mutex<Known> =
    Mutex::new(Known { networks: BTreeMap::new(), positions: BTreeMap::new(), dropouts: BTreeMap::new() });

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Network {
    fn of(descriptor: u64) -> Outcome<Network> {
        known().networks.get(&descriptor).copied().ok_or(Failure::InvalidHandle)
    }

    /// Matrices on the input, and as many on the last output.
    fn gates(&self) -> u64 {
        match self.cell {
            LSTM => 4,
            GRU => 3,
            _ => 1,
        }
    }

    fn projects(&self) -> bool {
        self.width != self.hidden
    }

    /// Width of what the layer of this number, counted by direction, gets.
    fn inputs_of(&self, pseudo_layer: u64) -> u64 {
        if pseudo_layer < self.directions { self.inputs } else { self.directions * self.width }
    }

    /// Elements of such a layer's matrices.
    fn matrices(&self, pseudo_layer: u64) -> u64 {
        let projection = if self.projects() { self.width * self.hidden } else { 0 };
        self.gates() * self.hidden * (self.inputs_of(pseudo_layer) + self.width) + projection
    }

    /// Elements of all layers' matrices before this one.
    fn matrices_before(&self, pseudo_layer: u64) -> u64 {
        (0..pseudo_layer).map(|layer| self.matrices(layer)).sum()
    }

    /// Bytes of all matrices, and of all biases after them: PyTorch always asks for two of each.
    fn weight_bytes(&self) -> u64 {
        let all = self.layers * self.directions;
        (self.matrices_before(all) + all * 2 * self.gates() * self.hidden) * self.element_bytes
    }

    /// Where one matrix and its bias begin, in elements, and how many rows and columns it has.
    fn matrix(&self, pseudo_layer: u64, number: u64) -> (u64, u64, [u64; 2]) {
        let (gates, inputs) = (self.gates(), self.inputs_of(pseudo_layer));
        let before = self.matrices_before(pseudo_layer);
        let (offset, size) = if number < gates {
            (number * self.hidden * inputs, [self.hidden, inputs])
        } else if number < 2 * gates {
            (self.hidden * (gates * inputs + (number - gates) * self.width), [self.hidden, self.width])
        } else {
            (gates * self.hidden * (inputs + self.width), [self.width, self.hidden])
        };
        let biases = self.matrices_before(self.layers * self.directions);
        let bias = biases + (pseudo_layer * 2 * gates + number.min(2 * gates - 1)) * self.hidden;
        (before + offset, bias, size)
    }

    /// Bytes kept for the backward pass of so many positions: for each layer and direction the gates and the states,
    /// between layers what the lower one gives, and a bit of dropout for each number of that.
    fn kept_bytes(&self, positions: u64) -> u64 {
        let each = match self.cell {
            LSTM if self.projects() => 6 * self.hidden + self.width,
            LSTM => 5 * self.hidden,
            GRU => 6 * self.hidden,
            _ => self.hidden,
        };
        let between = (self.layers - 1) * self.directions;
        let elements = positions * (self.layers * self.directions * each + between * self.hidden);
        let bits = if self.dropout { between * (positions * self.hidden).div_ceil(8) } else { 0 };
        elements * self.element_bytes + KEPT_EXTRA_BYTES + bits.next_multiple_of(64)
    }

    /// Bytes of workspace for so many positions: copies of weights and input, room for the products, and some tensors
    /// of the output's size, more of them where a network is so small that one kernel keeps its weights.
    fn workspace_bytes(&self, positions: u64) -> u64 {
        let tensors_of_ten = match (self.cell, self.hidden < 256) {
            (LSTM, true) => 215,
            (LSTM, false) => 56,
            (GRU, true) => 190,
            (GRU, false) => 45,
            (_, true) => 120,
            (_, false) => 25,
        };
        let outputs = positions * self.hidden * tensors_of_ten * (self.directions + 1) / 20;
        let products = PRODUCTS_BYTES * self.layers * self.directions;
        self.weight_bytes() + (positions * self.inputs + outputs) * self.element_bytes + products
    }
}

calls! { Dnn:
    fn cudnnSetRNNDescriptor_v8(
        descriptor: u64, _algorithm: c_int, cell: c_int, _bias: c_int, direction: c_int, _input: c_int, element: c_int,
        _precision: c_int, _mathematics: c_int, inputs: c_int, hidden: c_int, projection: c_int, layers: c_int,
        dropout: u64, _flags: u32,
    ) {
        let size = |number: c_int| u64::try_from(number).map_err(|_| Failure::InvalidValue);
        let mut known = known();
        let network = Network {
            cell,
            element_bytes: element_bytes(element),
            inputs: size(inputs)?,
            hidden: size(hidden)?,
            width: size(if projection > 0 { projection } else { hidden })?,
            layers: size(layers)?.max(1),
            directions: if direction == 0 { 1 } else { 2 },
            dropout: known.dropouts.get(&dropout).copied().unwrap_or(false),
        };
        known.networks.insert(descriptor, network);
        Ok(())
    }
    fn cudnnDestroyRNNDescriptor(descriptor: u64) {
        known().networks.remove(&descriptor);
        Ok(())
    }
    fn cudnnSetRNNDataDescriptor(
        descriptor: u64, _element: c_int, layout: c_int, length: c_int, batch: c_int, _width: c_int, lengths: Out<u8>,
        _fill: u64,
    ) {
        let lengths = lengths.get_bytes(4 * batch.unsigned_abs() as usize)?;
        let positions = if layout == PACKED {
            lengths.chunks(4).map(little_endian).map(i64::unsigned_abs).sum()
        } else {
            u64::from(batch.unsigned_abs()) * u64::from(length.unsigned_abs())
        };
        known().positions.insert(descriptor, positions);
        Ok(())
    }
    fn cudnnDestroyRNNDataDescriptor(descriptor: u64) {
        known().positions.remove(&descriptor);
        Ok(())
    }
    fn cudnnSetDropoutDescriptor(
        descriptor: u64, _handle: u64, share: f32, _states: u64, _bytes: usize, _seed: u64,
    ) {
        known().dropouts.insert(descriptor, share > 0.0);
        Ok(())
    }
    fn cudnnRestoreDropoutDescriptor(
        descriptor: u64, _handle: u64, share: f32, _states: u64, _bytes: usize, _seed: u64,
    ) {
        known().dropouts.insert(descriptor, share > 0.0);
        Ok(())
    }
    fn cudnnDestroyDropoutDescriptor(descriptor: u64) {
        known().dropouts.remove(&descriptor);
        Ok(())
    }
    /// A generator for each thread that the device holds: 6,488,064 bytes on an H200.
    fn cudnnDropoutGetStatesSize(_handle: u64, bytes: Out<u64>) {
        let gpu = setup().gpu;
        let threads = gpu.multiprocessors * gpu.threads_per_multiprocessor;
        bytes.put(u64::from(threads.unsigned_abs()) * GENERATOR_BYTES)
    }
    fn cudnnGetRNNWeightSpaceSize(_handle: u64, descriptor: u64, bytes: Out<u64>) {
        bytes.put(Network::of(descriptor)?.weight_bytes())
    }
    fn cudnnGetRNNTempSpaceSizes(
        _handle: u64, descriptor: u64, training: c_int, data: u64, workspace: Out<u64>, kept: Out<u64>,
    ) {
        let network = Network::of(descriptor)?;
        let positions = known().positions.get(&data).copied().ok_or(Failure::InvalidHandle)?;
        workspace.offer(asked(|| network.workspace_bytes(positions)));
        kept.offer(if training == 0 { 0 } else { network.kept_bytes(positions) });
        Ok(())
    }
    fn cudnnGetRNNWeightParams(
        _handle: u64, descriptor: u64, pseudo_layer: i32, _bytes: usize, weights: u64, number: i32, matrix: u64,
        matrix_at: Out<u64>, bias: u64, bias_at: Out<u64>,
    ) {
        let network = Network::of(descriptor)?;
        let (layer, number) = (u64::from(pseudo_layer.unsigned_abs()), u64::from(number.unsigned_abs()));
        let there = number < 2 * network.gates() || network.projects();
        let (at, bias_begin, [rows, columns]) = network.matrix(layer, number);
        let element = if network.element_bytes == 2 { 2 } else { 0 };
        Tensor { element, sizes: vec![1, rows, columns] }.describe(matrix);
        Tensor { element, sizes: vec![1, network.hidden, 1] }.describe(bias);
        matrix_at.offer(if there { weights + at * network.element_bytes } else { 0 });
        bias_at.offer(if number < 2 * network.gates() { weights + bias_begin * network.element_bytes } else { 0 });
        Ok(())
    }
}

/// Bytes of a `cudnnDataType_t` that networks have.
fn element_bytes(element: c_int) -> u64 {
    match element {
        0 => 4,
        1 => 8,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: &str = include_str!("../../tests/pytorch/workspaces/recurrent-h200-2.11.0.txt");

    /// Each network of the card's, its positions, and its bytes: weights, kept, workspace.
    fn measured() -> impl Iterator<Item = (Network, u64, [u64; 3])> {
        MEASURED.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            let cell = match words[0] {
                "LSTM" => LSTM,
                "GRU" => GRU,
                _ => 1,
            };
            let element_bytes = if words[9] == "fp16" { 2 } else { 4 };
            let (inputs, hidden, projection) = (number(3), number(4), number(8));
            let network = Network {
                cell,
                element_bytes,
                inputs,
                hidden,
                width: if projection > 0 { projection } else { hidden },
                layers: number(1),
                directions: number(2),
                dropout: words[7] != "0.0",
            };
            (network, number(5) * number(6), [number(10), number(11), number(12)])
        })
    }

    #[test]
    fn weights_and_what_is_kept_are_as_on_a_card() {
        for (network, positions, [weights, kept, _]) in measured() {
            assert_eq!(network.weight_bytes(), weights, "{network:?}");
            let most = if network.dropout { 64 } else { 0 };
            assert!(network.kept_bytes(positions).abs_diff(kept) <= most, "{network:?}: {kept}");
        }
    }

    #[test]
    fn the_workspace_is_near_the_cards() {
        let error = |(network, positions, [_, _, card]): (Network, u64, [u64; 3])| {
            network.workspace_bytes(positions) as f64 / card as f64 - 1.0
        };
        let mut errors: Vec<f64> = measured().map(error).collect();
        errors.sort_by(f64::total_cmp);
        let figures = [errors[0], errors[errors.len() / 2], errors[errors.len() - 1]];
        assert_eq!(figures.map(|figure| format!("{figure:.2}")), ["-0.62", "-0.00", "0.11"]);
    }
}
