//! Hints about faster matrix products that the GPU supports and the program does not use ([`hints`]): TF32, fp8, and
//! 2:4 sparse weights, half of which are zero. They change the numbers, and no technique applies them.

use plimsoll_gpu::Gpu;

use super::time::{Products, Work};

/// A hint is left out if it saves less than this fraction of a step.
const LEAST: f64 = 0.05;

/// A sentence for each kind of matrix product that would shorten a step noticeably. `capability` is the GPU's compute
/// capability, and `infers` is true for an inference program.
pub(super) fn hints(work: &Work, gpu: &Gpu, capability: f64, infers: bool) -> Vec<String> {
    let rates = gpu.flops;
    let sparse = Some(2 * rates.f16).filter(|_| infers && capability >= 8.0);
    let kinds = [
        (
            Products::F32,
            rates.tf32,
            "torch.set_float32_matmul_precision(\"high\") computes f32 matrix products in TF32",
        ),
        (Products::Narrow, rates.fp8, "matrix products in fp8 (torchao.float8, Transformer Engine)"),
        (
            Products::Narrow,
            sparse,
            "2:4 sparse weights (torch.sparse.to_sparse_semi_structured), half of which are zero",
        ),
    ];
    let own_s = work.products_at(gpu, None);
    let hint = |(products, rate, how): (Products, Option<u64>, &str)| {
        let step_s = work.products_at(gpu, Some((products, rate?)));
        let gain = 1.0 - step_s / own_s;
        (gain >= LEAST)
            .then(|| format!("{how}: about -{:.0} % time (estimated), numbers changed", gain * 100.0))
    };
    kinds.into_iter().filter_map(hint).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::time::tests::products;

    #[test]
    fn a_hint_is_given_where_the_gpu_has_faster_products_and_the_step_would_gain() {
        let found = |gpu: &str, capability, rate, flops, infers| {
            let gpu = plimsoll_gpu::named(gpu).expect("a GPU");
            hints(&products(rate, flops), gpu, capability, infers).concat()
        };
        assert!(found("H100", 9.0, "f32", 1e13, false).contains("TF32"));
        assert!(found("H100", 9.0, "bf16", 1e14, false).contains("fp8"));
        assert!(!found("H100", 9.0, "bf16", 1e14, false).contains("2:4"));
        assert!(found("A100-40GB", 8.0, "bf16", 1e14, true).contains("2:4"));
        // There is no fp8 below compute capability 8.9, no TF32 on a T4, and no hint if products take no time.
        assert_eq!(found("A100-40GB", 8.0, "bf16", 1e14, false), "");
        assert_eq!(found("T4", 7.5, "f32", 1e13, true), "");
        assert_eq!(found("H100", 9.0, "f32", 1e6, true), "");
        assert_eq!(found("H100", 9.0, "tf32", 1e13, true), "");
    }
}
