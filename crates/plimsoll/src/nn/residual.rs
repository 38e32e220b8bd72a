//! The residual stream of a pre-norm transformer. Its sublayers read the stream after normalization.
//!
//! A sublayer's output is not added immediately: the next normalization adds it in its own pass. A normalization's output is not
//! kept but recomputed in the backward pass, from its input, which is kept anyway.

use std::ops::Range;
use std::sync::Arc;

use plimsoll_tensor::checkpoint::{Sequence, recompute_output};
use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Result, Tensor, autocast};

use super::{Dropout, LayerNorm, Module, RmsNorm};

/// A normalization over rows.
pub(crate) trait RowNorm: Module + Clone + Send + Sync + 'static {
    /// The label of the layer's tensors.
    fn label(&self) -> LabelId;

    /// Returns `x + residual` and the normalized sum.
    fn forward_add(&self, x: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)>;
}

impl RowNorm for LayerNorm {
    fn label(&self) -> LabelId {
        LayerNorm::label(self)
    }

    #[track_caller]
    fn forward_add(&self, x: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        LayerNorm::forward_add(self, x, residual)
    }
}

impl RowNorm for RmsNorm {
    fn label(&self) -> LabelId {
        RmsNorm::label(self)
    }

    #[track_caller]
    fn forward_add(&self, x: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        RmsNorm::forward_add(self, x, residual)
    }
}

/// The sublayers of a model, as a sequence that is checkpointed within a budget. Sublayers that run together share a
/// stream.
pub(crate) struct Sublayers {
    label: LabelId,
    sublayers: Vec<Box<Sublayer>>,
}

/// Adds a sublayer's output to the stream.
type Sublayer = dyn Fn(&mut ResidualStream) -> Result<()> + Send + Sync;

impl Sublayers {
    /// Sublayers whose sums have this label.
    pub(crate) fn new(label: LabelId) -> Sublayers {
        Sublayers { label, sublayers: Vec::new() }
    }

    pub(crate) fn push(
        &mut self,
        sublayer: impl Fn(&mut ResidualStream) -> Result<()> + Send + Sync + 'static,
    ) {
        self.sublayers.push(Box::new(sublayer));
    }

    pub(crate) fn shared(self) -> Arc<dyn Sequence> {
        Arc::new(self)
    }
}

impl Sequence for Sublayers {
    fn len(&self) -> usize {
        self.sublayers.len()
    }

    fn run(&self, range: Range<usize>, x: &Tensor) -> Result<Tensor> {
        let mut stream = ResidualStream::new(x.clone(), self.label);
        self.sublayers[range].iter().try_for_each(|sublayer| sublayer(&mut stream))?;
        stream.into_sum()
    }
}

/// A sum, and a term still to be added to it. Each sum is labelled with the normalization that reads it, the last one with the
/// stream's label.
#[derive(Debug)]
pub(crate) struct ResidualStream {
    label: LabelId,
    sum: Tensor,
    part: Option<Tensor>,
}

impl ResidualStream {
    /// A stream that begins with `x`.
    pub(crate) fn new(x: Tensor, label: LabelId) -> ResidualStream {
        ResidualStream { label, sum: x, part: None }
    }

    /// Adds the output of a sublayer.
    pub(crate) fn add(&mut self, part: Tensor) -> Result<()> {
        self.settle(self.label)?;
        self.part = Some(part);
        Ok(())
    }

    /// Adds the output of a sublayer after dropout.
    pub(crate) fn add_dropped(&mut self, part: Tensor, dropout: &Dropout) -> Result<()> {
        if !dropout.is_dropping() {
            return self.add(part);
        }
        self.settle(self.label)?;
        self.sum = dropout.forward_add(&part, &self.sum)?;
        Ok(())
    }

    /// Returns the normalized stream, in the type that products read. Products that need it in the backward pass save
    /// only a recipe to recompute it.
    pub(crate) fn normalized<N: RowNorm>(&mut self, norm: &N) -> Result<Tensor> {
        let recomputed = norm.clone();
        let recomputed = move |x: &[Tensor]| autocast::lower(&recomputed.forward(&x[0])?);
        match self.part_to_fuse(norm)? {
            None => recompute_output(recomputed, &[&self.sum]),
            Some(part) => {
                let normal = autocast::lower(&self.add_and_normalize(part, norm)?)?;
                normal.recompute_with(recomputed, &[&self.sum])?;
                Ok(normal)
            }
        }
    }

    /// Returns the final, normalized stream.
    pub(crate) fn finish<N: RowNorm>(mut self, norm: &N) -> Result<Tensor> {
        match self.part_to_fuse(norm)? {
            None => norm.forward(&self.sum),
            Some(part) => self.add_and_normalize(part, norm),
        }
    }

    /// Returns one slice of the stream along a dimension; a pending term is added only to this slice.
    pub(crate) fn select(self, dim: isize, index: isize) -> Result<ResidualStream> {
        let part = self.part.map(|part| part.select(dim, index)).transpose()?;
        Ok(ResidualStream { sum: self.sum.select(dim, index)?, part, ..self })
    }

    /// Replaces the stream with what `layer` computes from it.
    pub(crate) fn replace(&mut self, layer: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<()> {
        self.settle(self.label)?;
        self.sum = layer(&self.sum)?;
        Ok(())
    }

    /// Returns the stream without normalizing it.
    pub(crate) fn into_sum(mut self) -> Result<Tensor> {
        self.settle(self.label)?;
        Ok(self.sum)
    }

    fn add_and_normalize<N: RowNorm>(&mut self, part: Tensor, norm: &N) -> Result<Tensor> {
        let (sum, normal) = norm.forward_add(&part, &self.sum)?;
        // Frees its memory before the caller requests more.
        drop(part);
        self.sum = sum;
        Ok(normal)
    }

    /// Returns the pending term if the normalization can add it in its own pass, which requires the same type. Otherwise adds it
    /// now.
    fn part_to_fuse<N: RowNorm>(&mut self, norm: &N) -> Result<Option<Tensor>> {
        if self.part.as_ref().is_some_and(|part| part.dtype() != self.sum.dtype()) {
            self.settle(norm.label())?;
        }
        Ok(self.part.take())
    }

    /// Adds the pending term.
    fn settle(&mut self, owner: LabelId) -> Result<()> {
        if let Some(part) = self.part.take() {
            let _owner = Span::layer(owner);
            self.sum = (&self.sum + &part)?;
        }
        Ok(())
    }
}
