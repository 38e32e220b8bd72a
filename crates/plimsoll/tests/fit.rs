//! The fastest techniques within a limit, for a job of one's own.

use plimsoll::fit::{FitOptions, Fitted, Numbers, Technique, Techniques, fit};
use plimsoll::nn::{Linear, Module, ModuleList, Scope};
use plimsoll::optim::AdamWOptions;
use plimsoll::{Device, Result, SimConfig, Tensor, backward_in_parts};

const BATCH: usize = 4096;
const WIDTH: usize = 1024;

/// Three steps of sixteen layers, which save 16 tensors of 16 MiB.
fn job(device: &Device, techniques: &Techniques) -> Result<()> {
    trained((BATCH, 16), device, techniques)
}

/// Three steps of `layers` layers on a batch.
fn trained((batch, layers): (usize, usize), device: &Device, techniques: &Techniques) -> Result<()> {
    let layers = ModuleList::new(&Scope::new(device, 1), layers, |s| Linear::without_bias(s, WIDTH, WIDTH))?;
    let blocks: Vec<_> = layers
        .iter()
        .map(|layer| {
            let layer = layer.clone();
            plimsoll::checkpoint::Step::new(move |x| layer.forward(x)?.tanh())
        })
        .collect();
    let checkpointer = techniques.checkpointer();
    let mut adamw = techniques.adamw(layers.parameters(), AdamWOptions::default())?;
    for _step in 0..3 {
        adamw.zero_grad();
        let x = Tensor::ones(&[batch, WIDTH], device)?;
        backward_in_parts(&[x], techniques.accumulate, |part| {
            let x = part[0].clone();
            let y = techniques.autocast(|| match &checkpointer {
                Some(checkpointer) => checkpointer.forward(&blocks, &x),
                None => blocks.iter().try_fold(x, |x, block| block.forward(&x)),
            })?;
            y.square()?.mean()
        })?;
        adamw.step()?;
    }
    Ok(())
}

fn within(limit_mib: u64, options: &FitOptions) -> Result<Fitted> {
    fit(&SimConfig::like("H200")?, limit_mib << 20, options, job)
}

#[test]
fn a_job_of_ones_own_is_made_to_fit() {
    let roomy = within(2048, &FitOptions::default()).unwrap();
    assert_eq!((roomy.techniques, roomy.runs), (Techniques::default(), 1));
    let free = roomy.takes;
    let mut last = free.seconds;
    for part in [0.9, 0.8] {
        let limit = (free.reserved_bytes as f64 * part) as u64 >> 20;
        let fitted = within(limit, &FitOptions::default()).unwrap();
        assert!(fitted.takes.reserved_bytes <= limit << 20 && fitted.runs < 40, "{fitted:?}");
        assert!(
            fitted.takes.seconds > last && fitted.takes.seconds < 1.8 * free.seconds,
            "{fitted:?} {free:?}"
        );
        assert!(fitted.techniques.code()[0].starts_with("model.checkpoint_within(Budget::"), "{fitted:#?}");
        last = fitted.takes.seconds;
        let parts = within(limit, &FitOptions { most_parts: 8, ..FitOptions::default() }).unwrap();
        assert!(parts.takes.seconds <= fitted.takes.seconds, "more to choose from: {parts:?}");
    }
    let only_parts =
        FitOptions { techniques: vec![Technique::Accumulate], most_parts: 64, ..FitOptions::default() };
    let parts = within((free.reserved_bytes >> 20) / 4 * 3, &only_parts).unwrap().techniques;
    assert!(parts.activations.is_none() && parts.accumulate > 1, "{parts:?}");
}

#[test]
fn what_cannot_fit_says_what_the_least_is() {
    let error = within(8, &FitOptions { most_parts: 4, ..FitOptions::default() }).unwrap_err().to_string();
    assert!(
        error.contains("does not fit in 8.00 MiB: it reserves ")
            && error.contains(
                " with `model.checkpoint_within(Budget::Auto);` and `let loss = backward_in_parts(&batch, 4, "
            ),
        "{error}"
    );
    let no_parts = FitOptions { most_parts: 0, ..FitOptions::default() };
    let error = within(8, &no_parts).unwrap_err().to_string();
    assert!(error.contains(" with `model.checkpoint_within(Budget::Auto);`; make"), "{error}");
    let wrong = fit(&SimConfig::like("H200").unwrap(), 1 << 30, &FitOptions::default(), |device, _| {
        Tensor::ones(&[2], device)?.matmul(&Tensor::ones(&[3], device)?).map(drop)
    });
    assert!(wrong.unwrap_err().out_of_memory().is_none(), "an error of the job itself is returned");
}

/// One job keeps mostly activations, the other weights and their moments.
#[test]
fn each_technique_is_found_alone_and_in_a_set() {
    let h200 = SimConfig::like("H200").unwrap();
    let run = |job: (usize, usize), part: f64, techniques: Vec<Technique>, numbers: Numbers| {
        let options = FitOptions { techniques, numbers, most_parts: 8, ..FitOptions::default() };
        let free = fit(&h200, u64::MAX, &options, |device, set| trained(job, device, set)).unwrap().takes;
        let limit = (free.reserved_bytes as f64 * part) as u64;
        (limit, fit(&h200, limit, &options, |device, set| trained(job, device, set)))
    };
    let (deep, wide) = ((BATCH, 16), (64, 48));
    for technique in Technique::all() {
        let job = match technique {
            Technique::Activations | Technique::Accumulate | Technique::Bfloat16 => deep,
            _ => wide,
        };
        let (limit, fitted) = run(job, 0.9, vec![technique], technique.numbers());
        let fitted = fitted.unwrap_or_else(|why| panic!("{technique}: {why}"));
        assert_eq!(fitted.techniques.iter().collect::<Vec<_>>(), [technique]);
        let (first, last) = (fitted.tried[0], fitted.tried[fitted.tried.len() - 1]);
        assert_eq!((first.techniques, first.takes, first.fits), (fitted.techniques, fitted.takes, true));
        assert!(!last.fits && last.takes.reserved_bytes > limit, "{technique}: {last:?}");
    }
    // Together they need less than each of them.
    let all: Vec<_> = Technique::all().collect();
    let (_, fitted) = run(wide, 0.5, all.clone(), Numbers::Rounding);
    let kept = fitted.unwrap();
    assert!(kept.techniques.iter().count() > 1 && kept.techniques.numbers() <= Numbers::Rounding, "{kept:?}");
    assert!(kept.tried.iter().all(|tried| tried.techniques.numbers() <= Numbers::Rounding));
    let (_, changed) = run(wide, 0.5, all.clone(), Numbers::Changed);
    assert!(changed.unwrap().takes.seconds <= kept.takes.seconds, "more to choose from");
    let (_, identical) = run(deep, 0.7, all, Numbers::Identical);
    let why = identical.unwrap_err().to_string();
    assert!(!why.contains("checkpoint_within") && why.contains("with_offloaded_state"), "{why}");
}
