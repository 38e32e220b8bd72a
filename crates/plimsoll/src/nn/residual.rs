//! The residual stream of a transformer whose parts read it normalized.
//!
//! What a part adds is not added at once: the next normalization adds it in its own pass. A normalization's output is computed
//! again in the backward pass, where that reads it, and not kept: its input is kept anyway.

use plimsoll_tensor::checkpoint::recompute_output;
use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Result, Tensor, autocast};

use super::{Dropout, LayerNorm, Module, RmsNorm};

/// A normalization of rows.
pub(crate) trait RowNorm: Module + Clone + Send + Sync + 'static {
    /// What owns its tensors.
    fn label(&self) -> LabelId;

    /// `x + residual`, and that sum normalized.
    fn forward_add(&self, x: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)>;
}

impl RowNorm for LayerNorm {
    fn label(&self) -> LabelId {
        LayerNorm::label(self)
    }

    fn forward_add(&self, x: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        LayerNorm::forward_add(self, x, residual)
    }
}

impl RowNorm for RmsNorm {
    fn label(&self) -> LabelId {
        RmsNorm::label(self)
    }

    fn forward_add(&self, x: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        RmsNorm::forward_add(self, x, residual)
    }
}

/// A sum, and what is still to be added to it. Its sums belong to the normalization that reads them, the last one to the stream.
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

    /// Adds what a part of the network computed.
    pub(crate) fn add(&mut self, part: Tensor) -> Result<()> {
        self.settle(self.label)?;
        self.part = Some(part);
        Ok(())
    }

    /// The same after dropout.
    pub(crate) fn add_dropped(&mut self, part: Tensor, dropout: &Dropout) -> Result<()> {
        if !dropout.is_dropping() {
            return self.add(part);
        }
        self.settle(self.label)?;
        self.sum = dropout.forward_add(&part, &self.sum)?;
        Ok(())
    }

    /// The stream normalized, in the type in which products read it. Products that keep it keep how to compute it.
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

    /// The stream at its end, normalized.
    pub(crate) fn finish<N: RowNorm>(mut self, norm: &N) -> Result<Tensor> {
        match self.part_to_fuse(norm)? {
            None => norm.forward(&self.sum),
            Some(part) => self.add_and_normalize(part, norm),
        }
    }

    /// One slice of the stream along a dimension: what is added to the others is never added.
    pub(crate) fn select(self, dim: isize, index: isize) -> Result<ResidualStream> {
        let part = self.part.map(|part| part.select(dim, index)).transpose()?;
        Ok(ResidualStream { sum: self.sum.select(dim, index)?, part, ..self })
    }

    /// The stream as it is.
    pub(crate) fn into_sum(mut self) -> Result<Tensor> {
        self.settle(self.label)?;
        Ok(self.sum)
    }

    fn add_and_normalize<N: RowNorm>(&mut self, part: Tensor, norm: &N) -> Result<Tensor> {
        let (sum, normal) = norm.forward_add(&part, &self.sum)?;
        // Its memory is free before the caller requests more.
        drop(part);
        self.sum = sum;
        Ok(normal)
    }

    /// What the normalization can add in its own pass, which takes one type. What it cannot is added now.
    fn part_to_fuse<N: RowNorm>(&mut self, norm: &N) -> Result<Option<Tensor>> {
        if self.part.as_ref().is_some_and(|part| part.dtype() != self.sum.dtype()) {
            self.settle(norm.label())?;
        }
        Ok(self.part.take())
    }

    /// Adds what is still to be added.
    fn settle(&mut self, owner: LabelId) -> Result<()> {
        if let Some(part) = self.part.take() {
            let _owner = Span::layer(owner);
            self.sum = (&self.sum + &part)?;
        }
        Ok(())
    }
}
