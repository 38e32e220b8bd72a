//! The sum of a gradient's rows, which is the gradient of a bias. A kernel that writes a gradient can also compute this sum.
//!
//! The gradient tensor stores the sum until its values change, and returns it once.

use std::sync::PoisonError;

use super::{Edge, Tensor};

impl Edge {
    /// Whether the node at the end of this edge needs the sum of the gradient's rows, for the gradient of a bias.
    pub(crate) fn wants_row_sum(&self) -> bool {
        matches!(self, Edge::Node(node, 0) if node.wants_row_sum())
    }
}

impl Tensor {
    /// Attaches the sum of a gradient's rows to the gradient; the same kernel computed both.
    pub(crate) fn bring_row_sum(&self, sum: Tensor) {
        let version = self.data().storage.version();
        let old = self.0.row_sum.lock().unwrap_or_else(PoisonError::into_inner).replace((sum, version));
        drop(old);
    }

    /// Takes the attached sum of its rows, of shape `[cols]`, if it is still valid.
    pub(crate) fn take_row_sum(&self) -> Option<Tensor> {
        let brought = self.0.row_sum.lock().unwrap_or_else(PoisonError::into_inner).take();
        // An attached sum has no derivative.
        let is_current = |version: u32| !self.requires_grad() && version == self.data().storage.version();
        brought.filter(|(_, version)| is_current(*version)).map(|(sum, _)| sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::dtype::DType;

    #[test]
    fn a_sum_that_came_with_a_gradient_is_used_once_and_only_while_that_is_unchanged() {
        let device = Device::cpu();
        let grad = Tensor::ones(&[2, 2, 3], &device).unwrap();
        let brought = || Tensor::full(&[3], 7.0, DType::F32, &device).unwrap();
        grad.bring_row_sum(brought());
        let sum = || grad.take_row_sum().map(|sum| sum.to_vec::<f32>().unwrap());
        assert_eq!((sum(), sum()), (Some(vec![7.0; 3]), None));
        grad.bring_row_sum(brought());
        grad.add_(Tensor::ones(&[3], &device).unwrap()).unwrap();
        assert_eq!(sum(), None);
        grad.bring_row_sum(brought());
        grad.requires_grad_(true).unwrap();
        assert_eq!(sum(), None);
    }

    #[test]
    fn only_a_bias_that_wants_a_gradient_wants_the_sum_of_the_rows() {
        let device = Device::cpu();
        let of = |shape: &[usize], wants: bool| {
            Tensor::ones(shape, &device).unwrap().requires_grad_(wants).unwrap()
        };
        let (x, weight) = (of(&[2, 3], true), of(&[4, 3], true));
        let wants = |y: &Tensor| y.edge().unwrap().wants_row_sum();
        assert!(wants(&x.linear(&weight, Some(&of(&[4], true))).unwrap()));
        assert!(!wants(&x.linear(&weight, Some(&of(&[4], false))).unwrap()));
        assert!(!wants(&x.linear(&weight, None).unwrap()));
        assert!(!wants(&x) && !wants(&x.relu().unwrap()));
    }
}
