//! Calls a model with different parameters: [`functional_call`].

use std::collections::BTreeMap;

use plimsoll_tensor::{Error, Result, Tensor};

use super::module::{walk, walk_mut};
use super::{Member, MemberMut, Module};
use crate::state_dict::StateDict;

/// Runs `f` with a model in which these tensors replace the parameters and buffers of the same names. They may be
/// results of operations, in which case gradients flow through them. When `f` returns, the model has its own tensors
/// again. A tied parameter is replaced under all of its names. Like `torch.func.functional_call`.
///
/// ```
/// use plimsoll::autograd::{GradOptions, grad};
/// use plimsoll::nn::{Linear, Module, Scope, functional_call};
/// use plimsoll::serialize::StateDict;
/// use plimsoll::{Device, Result, Tensor};
/// // The loss after one step of gradient descent, and its gradient through that step, as in MAML.
/// let device = Device::cpu();
/// let mut model = Linear::new(&Scope::new(&device, 1), 4, 1)?;
/// let (x, y) = (Tensor::randn(&[8, 4], &device)?, Tensor::ones(&[8, 1], &device)?);
/// let parameters = model.parameters();
/// let options = GradOptions { create_graph: true, ..GradOptions::default() };
/// let grads = grad(&[&model.forward(&x)?.mse_loss(&y)?], &parameters.iter().collect::<Vec<_>>(), options)?;
/// let stepped = model.named_parameters().into_iter().zip(grads);
/// let stepped: StateDict = stepped.map(|((name, p), g)| Ok((name, (p - (g.unwrap() * 0.1)?)?))).collect::<Result<_>>()?;
/// let loss = functional_call(&mut model, &stepped, |model| model.forward(&x)?.mse_loss(&y))?;
/// loss.backward()?;
/// assert!(parameters[0].grad().is_some() && model.weight().is_same(&parameters[0]));
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// # Errors
/// If the model has no tensor with one of these names, or the names of a tied parameter have different tensors; also
/// the error of `f`.
pub fn functional_call<M: Module, T>(
    model: &mut M,
    tensors: &StateDict,
    f: impl FnOnce(&M) -> Result<T>,
) -> Result<T> {
    let by = by_id(model, tensors)?;
    let call = Call::new(model, &by);
    f(call.model)
}

/// The tensors, by the ids of those that they replace.
fn by_id<M: Module>(model: &M, tensors: &StateDict) -> Result<BTreeMap<usize, Tensor>> {
    let mut ids = BTreeMap::new();
    walk(model, &mut |name, member| match member {
        Member::Parameter(parameter) => drop(ids.insert(name, parameter.id())),
        Member::Buffer(buffer) => drop(ids.insert(name, buffer.id())),
        _ => {}
    });
    let mut by: BTreeMap<usize, Tensor> = BTreeMap::new();
    for (name, tensor) in tensors.iter() {
        let Some(&id) = ids.get(name) else {
            let message = format!("`{name}` is not a parameter or buffer of this {}", model.kind());
            return Err(Error::argument("functional_call", message));
        };
        if by.insert(id, tensor.clone()).is_some_and(|other| !other.is_same(tensor)) {
            let message = format!("`{name}` is tied to another name, under which there is another tensor");
            return Err(Error::argument("functional_call", message));
        }
    }
    Ok(by)
}

/// Restores the model's own tensors when dropped, even if `f` panics.
struct Call<'a, M: Module> {
    model: &'a mut M,
    /// The model's own tensors, in the order of its members; `None` where nothing was replaced.
    own: Vec<Option<Tensor>>,
}

impl<'a, M: Module> Call<'a, M> {
    fn new(model: &'a mut M, by: &BTreeMap<usize, Tensor>) -> Call<'a, M> {
        let mut own = Vec::new();
        walk_mut(model, &mut |member| match member {
            MemberMut::Parameter(p) => own.push(by.get(&p.id()).map(|tensor| p.swap(tensor.clone()))),
            MemberMut::Buffer(b) => own.push(by.get(&b.id()).map(|tensor| b.swap(tensor.clone()))),
            MemberMut::Module(_) => {}
        });
        Call { model, own }
    }
}

impl<M: Module> Drop for Call<'_, M> {
    fn drop(&mut self) {
        let mut own = std::mem::take(&mut self.own).into_iter();
        walk_mut(self.model, &mut |member| match member {
            MemberMut::Parameter(p) => drop(own.next().flatten().map(|tensor| p.swap(tensor))),
            MemberMut::Buffer(b) => drop(own.next().flatten().map(|tensor| b.swap(tensor))),
            MemberMut::Module(_) => {}
        });
    }
}
