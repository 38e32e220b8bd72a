//! The fastest techniques within a limit, for a job of one's own.

use plimsoll::fit::{FitOptions, Fitted, Techniques, fit};
use plimsoll::nn::{Linear, Module, ModuleList, Scope};
use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
use plimsoll::{Device, Result, SimConfig, Tensor};

const BATCH: usize = 4096;
const WIDTH: usize = 1024;

/// Three steps of sixteen layers, which save 16 tensors of 16 MiB.
fn job(device: &Device, techniques: &Techniques) -> Result<()> {
    let layers = ModuleList::new(&Scope::new(device, 1), 16, |s| Linear::without_bias(s, WIDTH, WIDTH))?;
    let blocks: Vec<_> = layers
        .iter()
        .map(|layer| {
            let layer = layer.clone();
            plimsoll::checkpoint::Step::new(move |x| layer.forward(x)?.tanh())
        })
        .collect();
    let checkpointer = techniques.checkpointer();
    let mut sgd = Sgd::new(layers.parameters(), SgdOptions::default());
    for _step in 0..3 {
        sgd.zero_grad();
        for _part in 0..techniques.accumulate {
            let x = Tensor::ones(&[BATCH / techniques.accumulate, WIDTH], device)?;
            let y = match &checkpointer {
                Some(checkpointer) => checkpointer.forward(&blocks, &x)?,
                None => blocks.iter().try_fold(x, |x, block| block.forward(&x))?,
            };
            y.square()?.mean()?.backward()?;
        }
        sgd.step()?;
    }
    Ok(())
}

fn within(limit_mib: u64, options: FitOptions) -> Result<Fitted> {
    fit(&SimConfig::like("H200")?, limit_mib << 20, options, job)
}

#[test]
fn a_job_of_ones_own_is_made_to_fit() {
    let roomy = within(2048, FitOptions::default()).unwrap();
    assert_eq!((roomy.techniques, roomy.runs), (Techniques::default(), 1));
    let free = roomy.takes;
    let mut last = free.seconds;
    for part in [0.8, 0.65] {
        let limit = (free.reserved_bytes as f64 * part) as u64 >> 20;
        let fitted = within(limit, FitOptions::default()).unwrap();
        assert!(fitted.takes.reserved_bytes <= limit << 20 && fitted.runs < 40, "{fitted:?}");
        assert!(
            fitted.takes.seconds > last && fitted.takes.seconds < 1.8 * free.seconds,
            "{fitted:?} {free:?}"
        );
        assert!(fitted.techniques.code().unwrap().starts_with("model.checkpoint_within(Budget::Bytes("));
        last = fitted.takes.seconds;
        let parts = within(limit, FitOptions { most_parts: 8, ..FitOptions::default() }).unwrap();
        assert!(parts.takes.seconds <= fitted.takes.seconds, "more to choose from: {parts:?}");
    }
    let only_parts = FitOptions { has_blocks: false, most_parts: 64, ..FitOptions::default() };
    let parts = within((free.reserved_bytes >> 20) / 2, only_parts).unwrap().techniques;
    assert!(parts.activations.is_none() && parts.accumulate > 1, "{parts:?}");
}

#[test]
fn what_cannot_fit_says_what_the_least_is() {
    let error = within(8, FitOptions { most_parts: 4, ..FitOptions::default() }).unwrap_err().to_string();
    assert!(
        error.contains("does not fit in 8.00 MiB: it reserves ")
            && error.contains(" with `Budget::Auto` and each batch in 4 parts; make"),
        "{error}"
    );
    let no_parts = FitOptions { most_parts: 0, ..FitOptions::default() };
    let error = within(8, no_parts).unwrap_err().to_string();
    assert!(error.contains(" with `Budget::Auto`; make"), "{error}");
    let wrong = fit(&SimConfig::like("H200").unwrap(), 1 << 30, FitOptions::default(), |device, _| {
        Tensor::ones(&[2], device)?.matmul(&Tensor::ones(&[3], device)?).map(drop)
    });
    assert!(wrong.unwrap_err().out_of_memory().is_none(), "an error of the job itself is returned");
}
