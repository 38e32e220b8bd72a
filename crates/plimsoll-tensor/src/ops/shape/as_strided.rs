//! The part of a tensor that corresponds to a view of another tensor: for the gradients of views that were changed in place.

use smallvec::smallvec;

use crate::dispatch::{call, call_one};
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::layout::Layout;
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs};
use crate::ops::elementwise::operands;
use crate::suite::Case;
use crate::tensor::{Grads, Tensor, gradient_of_base};

/// `x -> view`: `x` has the layout `base`; the result has the layout `view` within it.
#[derive(Clone, Debug)]
struct AsStrided {
    base: Layout,
    view: Layout,
}

impl Kernel for AsStrided {
    fn name(&self) -> &'static str {
        "as_strided"
    }
}

impl Operator for AsStrided {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs("as_strided", ins)?;
        let layout = x.layout.region(&self.base, &self.view).ok_or_else(|| {
            let message =
                format!("{:?} is not a view of {:?}, for a tensor {:?}", self.view, self.base, x.layout);
            Error::shape("as_strided", message)
        })?;
        Ok(smallvec![Output::view(0, layout, x.dtype)])
    }

    fn cost(&self, _: &[Meta<'_>], _: &[Meta<'_>]) -> Cost {
        Cost::default()
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let grad = at.grad(0).map(|grad| gradient_of_base(grad, &self.base, &self.view));
        Ok(smallvec![grad.transpose()?])
    }
}

impl Tensor {
    /// The part of this tensor, whose layout is `base`, that `view` selects.
    ///
    /// # Errors
    /// If the layout of this tensor is not `base`, or `view` is not inside `base`.
    #[track_caller]
    pub(crate) fn region(&self, base: &Layout, view: &Layout) -> Result<Tensor> {
        call_one(AsStrided { base: base.clone(), view: view.clone() }, &[self])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let base = Layout::contiguous(&[3, 4]);
    let view = base.narrow(0, 1, 2).narrow(1, 1, 2).transpose(0, 1);
    let order = |x: &[f64]| vec![x[5], x[9], x[6], x[10]];
    vec![
        Case::new("as_strided", &[&[3, 4]], move |ins| {
            let x = ins[0].contiguous()?;
            call(AsStrided { base: base.clone(), view: view.clone() }, &[&x])
        })
        .expect(move |ins| vec![order(&ins[0])]),
    ]
}
