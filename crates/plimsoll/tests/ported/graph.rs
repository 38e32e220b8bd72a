//! Multi-head attention over the edges of graphs: softmax over a node's incoming edges, computed with scatter.

use plimsoll::nn::Linear;
use plimsoll::prelude::*;
use plimsoll::{Result, ScatterReduction};

use super::{fill, tensor};

module! {
    struct GraphAttention(s, inputs: usize, outputs: usize, heads: usize) {
        heads: usize,
        outputs: usize,
        lin: Linear = Linear::without_bias(s, inputs, heads * outputs)?,
        att_src: Parameter = s.own_parameter(&[1, heads, outputs], Init::Normal(0.1))?,
        att_dst: Parameter = s.own_parameter(&[1, heads, outputs], Init::Normal(0.1))?,
        bias: Parameter = s.own_parameter(&[heads * outputs], Init::Normal(0.1))?,
    }

    fn forward(&self, x: &Tensor, [src, dst]: [&Tensor; 2]) -> Result<Tensor> {
        let nodes = x.shape()[0];
        let h = self.lin.forward(x)?.view(&[-1, self.heads as isize, self.outputs as isize])?;
        let part = |weight: &Tensor, ends: &Tensor| (&h * weight)?.sum_dims(&[-1])?.index(&[Some(ends)]);
        let score = (part(&self.att_src, src)? + part(&self.att_dst, dst)?)?.leaky_relu(0.2)?;
        let index = dst.unsqueeze(1)?.expand_as(&score)?;
        let zeros = Tensor::zeros(&[nodes, self.heads], x.device())?;
        let top = zeros.scatter_reduce(0, &index, score.detach(), ScatterReduction::Amax, false)?;
        let weight = (&score - top.index(&[Some(dst)])?)?.exp()?;
        let total = Tensor::zeros(&[nodes, self.heads], x.device())?.scatter_add(0, &index, &weight)?;
        let weight = (&weight / (total.index(&[Some(dst)])? + 1e-16)?)?;
        let messages = (h.index(&[Some(src)])? * weight.unsqueeze(-1)?)?;
        let out =
            Tensor::zeros(&[nodes, self.heads, self.outputs], x.device())?.index_add(0, dst, &messages)?;
        out.flatten(1, -1)? + &self.bias
    }
}

module! {
    struct GraphNet(s) {
        gat1: GraphAttention = GraphAttention::new(s, 6, 5, 3)?,
        gat2: GraphAttention = GraphAttention::new(s, 15, 8, 1)?,
        node: Linear = Linear::new(s, 8, 4)?,
        graph: Linear = Linear::new(s, 16, 3)?,
    }

    fn forward(&self, x: &Tensor, edges: [&Tensor; 2], batch: &Tensor, graphs: usize) -> Result<[Tensor; 2]> {
        let h = self.gat1.forward(x, edges)?.elu(1.0)?;
        let h = self.gat2.forward(&h, edges)?.elu(1.0)?;
        let index = batch.unsqueeze(1)?.expand_as(&h)?;
        let zeros = Tensor::zeros(&[graphs, h.shape()[1]], x.device())?;
        let mean = zeros.scatter_reduce(0, &index, &h, ScatterReduction::Mean, false)?;
        let most = zeros.scatter_reduce(0, &index, &h, ScatterReduction::Amax, false)?;
        Ok([self.node.forward(&h)?, self.graph.forward(&Tensor::cat(&[&mean, &most], 1)?)?])
    }
}

pub(crate) fn losses() -> Result<Vec<f32>> {
    let device = crate::on_device::device();
    let model = GraphNet::new(&Scope::new(&device, 1))?;
    fill(&model)?;
    let options = AdamOptions { lr: 0.01, weight_decay: 5e-4, ..AdamOptions::default() };
    let mut optimizer = Adam::new(model.parameters(), options);
    let (nodes, graphs) = (18, 3);
    let here = Tensor::arange(nodes, &device)?;
    let batch = here.floor_divide_scalar(6)?;
    let first = batch.mul_scalar(6)?;
    let to =
        |times: i64, plus: i64| &first + here.mul_scalar(times)?.add_scalar(plus)?.remainder_scalar(6)?;
    let src = Tensor::cat(&[&here, &here, &here], 0)?;
    let dst = Tensor::cat(&[&here, &to(1, 1)?, &to(5, 2)?], 0)?;
    let mask = here.remainder_scalar(3)?.ne_scalar(1)?;
    let mut losses = Vec::new();
    for step in 0..6 {
        let x = tensor(step, &[18, 6], &device)?;
        let node_target = (&here * &here)?.add_scalar(step as i64)?.remainder_scalar(4)?;
        let graph_target = Tensor::arange(3, &device)?;
        optimizer.zero_grad();
        let [of_nodes, of_graphs] = model.forward(&x, [&src, &dst], &batch, graphs)?;
        let picked = of_nodes.index(&[Some(&mask)])?.log_softmax(1)?;
        let of_nodes = picked.nll_loss(node_target.index(&[Some(&mask)])?, Reduction::Mean)?;
        let loss = (&of_nodes + of_graphs.cross_entropy(&graph_target)?)?;
        loss.backward()?;
        optimizer.step()?;
        losses.push(loss.item()?);
    }
    Ok(losses)
}
