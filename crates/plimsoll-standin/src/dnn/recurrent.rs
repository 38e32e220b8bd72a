//! cuDNN's recurrent networks: the offset of each matrix in the weights, the reserve space for the backward pass, and a
//! model of the workspace. The formulas were fitted to an H200 (`tests/pytorch/workspaces/`). Weights and reserve space
//! are exact (except for some bytes of alignment with dropout or a projection). The workspace is exact for LSTM and for
//! inference, and approximate for training other cells and for projections.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard};

use super::asked;
use super::tensor::Tensor;
use crate::argument::{Out, little_endian};
use crate::call::calls;
use crate::error::{Failure, Outcome};
use crate::gpu::setup;
use crate::lock::locked;

/// Bytes of random state per thread.
const GENERATOR_BYTES: u64 = 24;
/// Fixed bytes of the reserve space in addition to the gates, and of a workspace in addition to its tensors.
const EXTRA_BYTES: u64 = 256;
/// Fixed bytes for the matrix products of each layer and direction.
const PRODUCTS_BYTES: u64 = 8 << 20;
/// `CUDNN_LSTM` and `CUDNN_GRU`; the other cells are plain RNNs.
const LSTM: c_int = 2;
const GRU: c_int = 3;
/// `CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED`.
const PACKED: c_int = 1;

/// A network, as in its descriptor.
#[derive(Debug, Clone, Copy)]
struct Network {
    cell: c_int,
    element_bytes: u64,
    inputs: u64,
    hidden: u64,
    /// Output width: `hidden`, or the projection's width.
    width: u64,
    layers: u64,
    directions: u64,
    dropout: bool,
}

/// A batch of sequences: the number of sequences, and their total positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sequences {
    positions: u64,
    batch: u64,
}

/// `cudnnForwardMode_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    Inference,
    Training,
}

/// The known descriptors: networks, sequences, and whether dropout is on in each dropout descriptor.
#[derive(Debug)]
struct Known {
    networks: BTreeMap<u64, Network>,
    sequences: BTreeMap<u64, Sequences>,
    dropouts: BTreeMap<u64, bool>,
}

static KNOWN: Mutex<Known> =
    Mutex::new(Known { networks: BTreeMap::new(), sequences: BTreeMap::new(), dropouts: BTreeMap::new() });

fn known() -> MutexGuard<'static, Known> {
    locked(&KNOWN)
}

impl Network {
    fn of(descriptor: u64) -> Outcome<Network> {
        known().networks.get(&descriptor).copied().ok_or(Failure::InvalidHandle)
    }

    /// The number of matrices that multiply the input. The same number multiply the previous output.
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

    /// The input width of this layer, counted by direction.
    fn inputs_of(&self, pseudo_layer: u64) -> u64 {
        if pseudo_layer < self.directions { self.inputs } else { self.directions * self.width }
    }

    /// Elements of this layer's matrices.
    fn matrices(&self, pseudo_layer: u64) -> u64 {
        let projection = if self.projects() { self.width * self.hidden } else { 0 };
        self.gates() * self.hidden * (self.inputs_of(pseudo_layer) + self.width) + projection
    }

    /// Elements of all matrices before this layer.
    fn matrices_before(&self, pseudo_layer: u64) -> u64 {
        (0..pseudo_layer).map(|layer| self.matrices(layer)).sum()
    }

    /// Bytes of all matrices, followed by all biases: PyTorch always requests two biases per gate.
    fn weight_bytes(&self) -> u64 {
        let all = self.layers * self.directions;
        (self.matrices_before(all) + all * 2 * self.gates() * self.hidden) * self.element_bytes
    }

    /// Offset of a matrix and of its bias, in elements, and the matrix's rows and columns.
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

    /// Reserve space for the backward pass of this many positions: gates and states for each layer and direction;
    /// between layers, the lower layer's output and one dropout bit per input of each direction.
    fn kept_bytes(&self, positions: u64) -> u64 {
        let each = match self.cell {
            LSTM if self.projects() => 6 * self.hidden + self.width,
            LSTM => 5 * self.hidden,
            GRU => 6 * self.hidden,
            _ => self.hidden,
        };
        let between = (self.layers - 1) * self.directions;
        let elements = positions * (self.layers * self.directions * each + between * self.hidden);
        let bits =
            if self.dropout { between * (positions * self.hidden * self.directions).div_ceil(8) } else { 0 };
        elements * self.element_bytes + EXTRA_BYTES + bits.next_multiple_of(64)
    }

    /// Workspace bytes: copies of the matrices and of the input, room for the products, and tensors of the hidden size,
    /// some for all positions, some for one step of each layer. Which of them depends on whether the network is small
    /// enough for a persistent kernel, which keeps the weights on chip over all steps.
    fn workspace_bytes(&self, sequences: Sequences, pass: Pass) -> u64 {
        let Sequences { positions, batch } = sequences;
        let pseudo_layers = self.layers * self.directions;
        let (all, step) = (positions * self.hidden, batch * self.hidden * self.layers);
        let (alls, steps) = match (self.cell, self.is_small(), self.directions) {
            (LSTM, ..) if self.projects() => [(6, 0), (17, 10)][usize::from(self.directions > 1)],
            (LSTM, true, 1) => (21, 8),
            (LSTM, true, _) => (30, 18),
            (LSTM, false, 1) => (5, 10),
            (LSTM, false, _) => (14, 24),
            (GRU, true, 1) => (16, 4),
            (GRU, true, _) => (24, 10),
            (GRU, false, 1) => (4, 5),
            (GRU, false, _) => (12, 14),
            (_, true, 1) => (6, 4),
            (_, true, _) => (12, 10),
            (_, false, 1) => (2, 3),
            (_, false, _) => (8, 10),
        };
        let elements =
            self.matrices_before(pseudo_layers) + positions * self.inputs + alls * all + steps * step;
        let more = if pass == Pass::Training { self.more_to_train(sequences) } else { 0 };
        let lengths = (8 * batch).next_multiple_of(32);
        (elements + more) * self.element_bytes + PRODUCTS_BYTES * pseudo_layers + lengths + EXTRA_BYTES
    }

    /// Workspace elements that training needs beyond inference: for dropout's output, or for the backward pass.
    fn more_to_train(&self, Sequences { positions, batch }: Sequences) -> u64 {
        let all = positions * self.hidden;
        let dropped = if self.dropout && self.directions == 1 { all } else { 0 };
        if self.cell == LSTM {
            return dropped;
        }
        let between = if self.layers > 1 { self.directions } else { 0 };
        let (alls, less, steps) = match (self.cell, self.is_small(), self.directions) {
            (GRU, true, 1) => (2, 0, 2),
            (GRU, true, _) => (0, 0, 2),
            (GRU, false, 1) => (0, 0, 0),
            (GRU, false, _) => (0, 2, 0),
            (_, true, _) => (7, 0, 2),
            (_, false, _) => (2, 0, 2),
        };
        let steps = steps * batch * self.hidden * self.layers * self.directions;
        let backward = positions * self.inputs + (alls + between) * all + steps;
        backward.saturating_sub(less * all).max(dropped)
    }

    /// Whether a persistent kernel runs (`CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H`): up to a hidden size of 192, or of
    /// 384 for cells with a single gate.
    fn is_small(&self) -> bool {
        self.hidden <= if self.gates() > 1 { 192 } else { 384 }
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
        let batch = u64::from(batch.unsigned_abs());
        let positions = if layout == PACKED {
            lengths.chunks(4).map(little_endian).map(i64::unsigned_abs).sum()
        } else {
            batch * u64::from(length.unsigned_abs())
        };
        known().sequences.insert(descriptor, Sequences { positions, batch });
        Ok(())
    }
    fn cudnnDestroyRNNDataDescriptor(descriptor: u64) {
        known().sequences.remove(&descriptor);
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
    /// One random state per resident thread of the device: 6,488,064 bytes on an H200.
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
        let sequences = known().sequences.get(&data).copied().ok_or(Failure::InvalidHandle)?;
        let pass = if training == 0 { Pass::Inference } else { Pass::Training };
        workspace.offer(asked(|| network.workspace_bytes(sequences, pass)));
        kept.offer(match pass {
            Pass::Inference => 0,
            Pass::Training => network.kept_bytes(sequences.positions),
        });
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

/// Bytes of a network's `cudnnDataType_t`.
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

    /// A measured network, its sequences, and the H200's bytes: weights, reserve space, training and inference
    /// workspace.
    struct Row {
        network: Network,
        sequences: Sequences,
        bytes: [u64; 4],
    }

    fn measured() -> impl Iterator<Item = Row> {
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
            let sequences = Sequences { positions: number(5) * number(6), batch: number(5) };
            Row { network, sequences, bytes: [10, 11, 12, 13].map(number) }
        })
    }

    #[test]
    fn weights_and_what_is_kept_are_as_on_a_card() {
        for Row { network, sequences, bytes: [weights, kept, ..] } in measured() {
            assert_eq!(network.weight_bytes(), weights, "{network:?}");
            let most = if network.dropout || network.projects() { 64 } else { 0 };
            assert!(network.kept_bytes(sequences.positions).abs_diff(kept) <= most, "{network:?}: {kept}");
        }
    }

    #[test]
    fn workspaces_of_inference_are_as_on_a_card_but_for_alignment_if_nothing_is_projected() {
        for Row { network, sequences, bytes: [.., card] } in measured().filter(|row| !row.network.projects())
        {
            let ours = network.workspace_bytes(sequences, Pass::Inference);
            assert!(ours.abs_diff(card) <= 128, "{network:?} {sequences:?}: {ours} for {card}");
        }
    }

    #[test]
    fn workspaces_of_training_are_near_the_cards() {
        let check = |expected: [&str; 3], is_meant: fn(&Network) -> bool| {
            let error = |Row { network, sequences, bytes: [_, _, card, _] }: Row| {
                network.workspace_bytes(sequences, Pass::Training) as f64 / card as f64 - 1.0
            };
            let mut errors: Vec<f64> = measured().filter(|row| is_meant(&row.network)).map(error).collect();
            errors.sort_by(f64::total_cmp);
            let figures = [errors[0], errors[errors.len() / 2], errors[errors.len() - 1]];
            assert_eq!(figures.map(|figure| format!("{figure:.3}").replace("-0.000", "0.000")), expected);
        };
        check(["0.000", "0.000", "0.000"], |network| network.cell == LSTM && !network.projects());
        check(["0.000", "0.000", "0.083"], |network| network.cell == GRU);
        check(["0.000", "0.000", "0.295"], |network| network.cell == 1);
        check(["-0.008", "0.002", "0.027"], Network::projects);
    }
}
