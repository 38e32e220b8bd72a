//! `plimsoll train --fit`, and the techniques that it chooses. `train_plan.rs` tests plans with them.

use std::process::Output;

use serde_json::Value;

use crate::program::images::stripes;
use crate::program::{Folder, json, plimsoll, stderr, stdout};

/// A GPT whose activations take most of its memory.
const DEEP: [&str; 14] = [
    "train",
    "gpt",
    "--layers",
    "4",
    "--heads",
    "2",
    "--width",
    "64",
    "--context",
    "128",
    "--batch-size",
    "8",
    "--sample",
    "0",
];

fn gpt(args: &[&str]) -> Output {
    plimsoll(&[&DEEP[..], args].concat())
}

fn result(args: &[&str]) -> Value {
    let output = gpt(&[args, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
    json(&output)
}

fn reserved(answer: &Value) -> u64 {
    answer["memory"]["peak_reserved_bytes"].as_u64().expect("a peak")
}

#[test]
fn a_job_is_made_to_fit_by_simulated_runs() {
    let free = result(&["--steps", "4", "--device", "sim:H100"]);
    assert_eq!((&free["techniques"], &free["fit"]), (&Value::Array(vec![]), &Value::Null));
    let mut last = 1.0;
    for part in [0.9, 0.7, 0.55] {
        let limit = (reserved(&free) as f64 * part) as u64;
        let fitted = result(&["--steps", "4", "--device", "sim:H100", "--fit", &limit.to_string()]);
        assert!(reserved(&fitted) <= limit, "{part}: {} of {limit}", reserved(&fitted));
        let fit = &fitted["fit"];
        assert_eq!(fit["limit_bytes"], limit);
        assert!(!fit["options"].as_array().expect("options").is_empty(), "{part}");
        let longer = fit["times_as_long"].as_f64().expect("a factor");
        assert!(longer >= last - 1e-9 && longer < 2.0, "{part}: {longer} after {last}");
        last = longer;
        let saved: i64 = fitted["techniques"]
            .as_array()
            .expect("techniques")
            .iter()
            .map(|it| it["saved_bytes"].as_i64().expect("bytes"))
            .sum();
        assert!(saved > 0, "{part}: {fitted}");
    }
    let roomy = result(&["--steps", "4", "--device", "sim:H100", "--fit", "8GiB"]);
    assert_eq!((reserved(&roomy), &roomy["fit"]["options"]), (reserved(&free), &Value::Array(vec![])));
}

#[test]
fn a_fitted_job_trains_within_its_limit_with_the_losses_of_the_whole_one() {
    let free = result(&["--steps", "3", "--lr", "0.001"]);
    let limit = (reserved(&free) as f64 * 0.6) as u64;
    let output = gpt(&["--steps", "3", "--lr", "0.001", "--fit", &limit.to_string()]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(
        text.starts_with("fits with ") && text.contains("\nTechniques (compared with simulated steps"),
        "{text}"
    );
    assert!(stderr(&output).contains("chosen of "), "{}", stderr(&output));
    for options in [&["--accumulate", "4"][..], &["--activations", "auto"], &["--fit", &limit.to_string()]] {
        let other = result(&[&["--steps", "3", "--lr", "0.001"], options].concat());
        for kind in ["losses", "validation_losses"] {
            let losses = |answer: &Value| {
                answer[kind]
                    .as_array()
                    .expect("losses")
                    .iter()
                    .map(|loss| loss.as_f64().expect("a loss"))
                    .collect::<Vec<_>>()
            };
            let pairs = losses(&free).into_iter().zip(losses(&other)).collect::<Vec<_>>();
            assert!(
                !pairs.is_empty() && pairs.iter().all(|(a, b)| (a - b).abs() < 1e-4),
                "{options:?}: {pairs:?}"
            );
        }
    }
}

/// SGD, in contrast to AdamW with clipping, shows a wrong scale of the gradients.
#[test]
fn unequal_parts_of_a_batch_have_the_gradient_of_the_batch() {
    let losses = |more: &[&str]| {
        let command = [
            "train",
            "mnist",
            "--images",
            "90",
            "--batch-size",
            "20",
            "--epochs",
            "2",
            "--lr",
            "0.05",
            "--json",
        ];
        let output = plimsoll(&[&command[..], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let losses = json(&output)["losses"].as_array().expect("losses").clone();
        losses.iter().map(|loss| loss.as_f64().expect("a loss")).collect::<Vec<_>>()
    };
    let (whole, parts) = (losses(&[]), losses(&["--accumulate", "3"]));
    assert!(whole.len() == 2 && whole[1] < whole[0] - 0.01, "{whole:?}");
    assert!(whole.iter().zip(&parts).all(|(a, b)| (a - b).abs() < 1e-5), "{whole:?} and {parts:?}");
}

#[test]
fn a_budget_for_parts_of_a_batch_alone_is_not_compared_with_the_whole_batch() {
    let args = ["--steps", "2", "--device", "sim", "--activations", "600KiB", "--accumulate", "8"];
    let answer = result(&args);
    let options: Vec<&str> = answer["techniques"]
        .as_array()
        .expect("techniques")
        .iter()
        .map(|it| it["option"].as_str().expect("an option"))
        .collect();
    assert_eq!(options, ["--activations 614400B"]);
}

#[test]
fn a_resnet_keeps_what_its_budget_says() {
    let folder = Folder::new("fit-images");
    stripes(&folder.0, 40);
    let run = |args: &[&str]| {
        let command = [
            "train",
            "image",
            "--data",
            folder.path(),
            "--model",
            "resnet18",
            "--image-size",
            "64",
            "--batch-size",
            "8",
            "--steps",
            "2",
            "--device",
            "sim",
            "--json",
        ];
        let output = plimsoll(&[&command[..], args].concat());
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
        json(&output)
    };
    let (free, auto) = (run(&[]), run(&["--activations", "auto"]));
    assert!(reserved(&auto) < reserved(&free), "{} of {}", reserved(&auto), reserved(&free));
    assert_eq!(auto["techniques"][0]["option"], "--activations auto");
}

#[test]
fn what_cannot_fit_says_what_it_needs() {
    let output = gpt(&["--steps", "2", "--device", "sim", "--fit", "3MiB"]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(
        said.contains("error: does not fit in 3.00 MiB: it reserves ")
            && said.contains("with --accumulate 4 --offload-optimizer"),
        "{said}"
    );
    let output = plimsoll(&["train", "mnist", "--device", "sim", "--images", "100", "--fit", "1MiB"]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
}

#[test]
fn techniques_that_a_job_cannot_use_are_refused() {
    for (args, expected) in [
        (&["--accumulate", "9"][..], "more parts than --batch-size has samples"),
        (&["--accumulate", "0"], "0 is not in 1.."),
        (&["--activations", "0"], "must be more than 0; or `auto`"),
        (&["--activations", "auto", "--checkpoint"], "cannot be used with"),
        (&["--fit", "1GiB", "--checkpoint"], "cannot be used with"),
        (&["--fit", "1GiB", "--memory-limit", "1GiB"], "cannot be used with"),
        (
            &["--accumulate", "2", "--parallel", "ddp", "--sim-ranks", "2", "--device", "sim"],
            "--accumulate is for one rank",
        ),
        (&["--accumulate", "2", "--reproducible"], "--accumulate is for one rank"),
        (&["--step-in-backward"], "add --clip 0"),
        (&["--fit", "1GiB", "--step-in-backward"], "add --clip 0"),
        (
            &["--clip", "0", "--step-in-backward", "--accumulate", "2"],
            "--accumulate does not work with --step",
        ),
        (
            &["--clip", "0", "--step-in-backward", "--capture"],
            "--step-in-backward does not work with --capture",
        ),
        (&["--clip", "0", "--step-in-backward", "--reproducible"], "--step-in-backward is for one rank"),
        (&["--offload-optimizer"], "--offload-optimizer is for GPUs"),
        (
            &["--offload-optimizer", "--capture", "--device", "sim"],
            "--offload-optimizer does not work with --capture",
        ),
        (
            &["--offload-optimizer", "--parallel", "shard", "--sim-ranks", "2", "--device", "sim"],
            "--offload-optimizer needs complete parameters",
        ),
        (&["--clip=-1"], "a norm must be 0 or more"),
        (&["--numbers", "changed"], "required"),
        (&["--goal", "batch"], "required"),
    ] {
        let output = gpt(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
    }
    let output = plimsoll(&["train", "mnist", "--device", "sim", "--images", "100", "--activations", "auto"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("--activations is for networks of blocks"), "{}", stderr(&output));
}

#[test]
fn blocks_that_wait_on_the_host_are_not_computed_again() {
    let large = "train gpt --layers 12 --heads 12 --width 768 --context 1024 --batch-size 8 --dtype bfloat16 --sample 0 --steps 4";
    let large: Vec<&str> = large.split(' ').collect();
    let run = |args: &[&str]| plimsoll(&[&large[..], &["--device", "sim:H200"], args].concat());
    let fitted = |args: &[&str]| {
        let output = run(&[args, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
        let answer = json(&output);
        crate::schema::check(&answer);
        (answer["fit"]["times_as_long"].as_f64().expect("a factor"), answer)
    };
    let (without, _) = fitted(&["--fit", "2400MiB"]);
    let (with, answer) = fitted(&["--fit", "2400MiB", "--offload", "8GiB"]);
    assert!(with < without && reserved(&answer) <= 2400 << 20, "{with} {without}");
    let options = answer["fit"]["options"].as_array().expect("options");
    assert!(options.iter().any(|it| it == "--offload 8GiB"), "{options:?}");
    assert!(
        answer["techniques"][0]["in_rust"]
            .as_str()
            .is_some_and(|it| it.contains(".with_offload(8589934592)"))
    );
    for (args, expected) in [
        (&["--offload", "8GiB"][..], "required"),
        (&["--activations", "auto", "--offload", "8GiB", "--capture"], "does not work with --capture"),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

/// A GPT whose weights, gradients and moments take most of its memory.
const WIDE: &str =
    "train gpt --layers 4 --heads 4 --width 512 --context 32 --batch-size 4 --sample 0 --steps 4 --clip 0";

fn wide(args: &[&str]) -> Value {
    let wide: Vec<&str> = WIDE.split(' ').collect();
    let output = plimsoll(&[&wide[..], args, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
    let answer = json(&output);
    crate::schema::check(&answer);
    answer
}

pub(crate) fn words(options: &Value) -> Vec<&str> {
    let options = options.as_array().expect("options").iter();
    options.flat_map(|option| option.as_str().expect("an option").split(' ')).collect()
}

#[test]
fn each_technique_is_an_option_and_says_what_it_saved() {
    let free = reserved(&wide(&["--device", "sim:H100"]));
    let both = &["--step-in-backward", "--offload-optimizer"][..];
    for (options, numbers) in [
        (&["--step-in-backward"][..], "identical"),
        (&["--offload-optimizer"], "identical"),
        (both, "identical"),
        (&["--optimizer", "adamw8bit"], "changed"),
    ] {
        let answer = wide(&[options, &["--device", "sim:H100"]].concat());
        let techniques = answer["techniques"].as_array().expect("techniques");
        assert_eq!(techniques.len(), if options == both { 2 } else { 1 }, "{options:?}");
        for saving in techniques {
            assert!(saving["saved_bytes"].as_i64().is_some_and(|bytes| bytes > 0), "{options:?}: {saving}");
            assert_eq!(saving["numbers"], numbers, "{options:?}");
        }
        if techniques.len() == 1 {
            assert_eq!(techniques[0]["option"], options.join(" "));
            assert_eq!(techniques[0]["reserved_bytes_without"], free, "as the job without it: {options:?}");
            assert_eq!(techniques[0]["reserved_bytes"], reserved(&answer), "{options:?}");
        }
    }
    let narrow = result(&["--steps", "4", "--device", "sim:H100", "--dtype", "bfloat16"]);
    assert_eq!(narrow["techniques"][0]["option"], "--dtype bfloat16");
    assert!(narrow["techniques"][0]["saved_bytes"].as_i64().is_some_and(|bytes| bytes > 0), "{narrow}");
}

#[test]
fn techniques_of_the_optimizer_are_searched_if_the_numbers_allow_it() {
    let free = wide(&["--device", "sim:H100"]);
    let fitted = |part: f64, numbers: &str| {
        let limit = (reserved(&free) as f64 * part) as u64;
        let answer = wide(&["--device", "sim:H100", "--fit", &limit.to_string(), "--numbers", numbers]);
        assert!(reserved(&answer) <= limit, "{part} {numbers}: {} of {limit}", reserved(&answer));
        let fit = &answer["fit"];
        assert!(fit["simulated_runs"].as_u64().is_some_and(|runs| runs < 150), "{fit}");
        let tried = fit["tried"].as_array().expect("sets");
        assert_eq!(tried[0]["options"], fit["options"]);
        assert!(tried.iter().all(|it| it["numbers"] != "changed") || numbers == "changed", "{fit}");
        // The fastest that fits comes first; a technique that saves less than 1 % of a step is not worth it.
        let ms = |it: &Value| it["estimated_step_ms"].as_f64().expect("a time");
        let cost =
            |it: &Value| ms(it) * (1.0 + 0.01 * it["options"].as_array().expect("options").len() as f64);
        let fitting: Vec<f64> = tried.iter().filter(|it| it["fits"] == true).map(cost).collect();
        assert!(fitting.is_sorted(), "{fitting:?}");
        // Its options alone do the same.
        let limit = limit.to_string();
        let options = [&words(&fit["options"])[..], &["--device", "sim:H100", "--memory-limit", &limit]];
        let again = wide(&options.concat());
        assert_eq!(reserved(&again), reserved(&answer));
        ms(&tried[0])
    };
    let (identical, changed) = (fitted(0.5, "identical"), fitted(0.5, "changed"));
    assert!(changed <= identical, "{changed} {identical}");
    fitted(0.4, "rounding");
}

#[test]
fn a_step_in_the_backward_pass_keeps_the_numbers_and_the_checkpoint() {
    let values = |answer: &Value| (answer["losses"].clone(), answer["validation_losses"].clone());
    let args = ["--layers", "2", "--width", "64", "--lr", "0.001"];
    let wide: Vec<&str> = WIDE.split(' ').collect();
    let run = |more: &[&str]| {
        let own: Vec<&str> = wide.iter().copied().take_while(|word| *word != "--layers").collect();
        let rest = wide.iter().skip_while(|word| **word != "--context").copied();
        let command: Vec<&str> = own.into_iter().chain(args).chain(["--heads", "4"]).chain(rest).collect();
        let output = plimsoll(&[&command[..], more, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{more:?}: {}", stderr(&output));
        json(&output)
    };
    let plain = run(&[]);
    assert_eq!(values(&run(&["--step-in-backward"])), values(&plain));
    // A checkpoint of one resumes with the other.
    let folder = Folder::new("fit-resume");
    let (first, second) = (["--step-in-backward", "--save", folder.path()], ["--resume", folder.path()]);
    run(&first);
    let longer = |more: &[&str]| run(&[more, &["--optimizer", "adamw"]].concat());
    assert_eq!(values(&longer(&second)), values(&plain));
}

#[test]
fn several_ranks_train_with_the_techniques_of_the_first() {
    let job = "train gpt --layers 4 --heads 2 --width 64 --context 128 --batch-size 16 --sample 0 --steps 3 --lr 0.001";
    let job: Vec<&str> = job.split(' ').collect();
    let ranks = |more: &[&str]| {
        let output = plimsoll(&[&job[..], &["--parallel", "ddp", "--ranks", "2", "--json"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{more:?}: {}", stderr(&output));
        json(&output)
    };
    let free = ranks(&[]);
    let limit = (reserved(&free) as f64 * 0.85) as u64;
    let fitted = ranks(&["--fit", &limit.to_string()]);
    let options = fitted["fit"]["options"].to_string();
    assert!(options.contains("--activations"), "{options}");
    let peaks = fitted["ranks"]["peaks"].as_array().expect("peaks");
    assert!(
        peaks.len() == 2 && peaks.iter().all(|it| it["reserved_bytes"].as_u64() <= Some(limit)),
        "{peaks:?}"
    );
}
