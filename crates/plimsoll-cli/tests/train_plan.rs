//! Plans of `plimsoll train` with techniques, and the largest batch: `--plan`, and `plimsoll plan -- plimsoll train …`.

use serde_json::Value;

use crate::program::{json, plimsoll, stderr};
use crate::train_fit::words;

#[test]
fn a_plan_makes_ways_fit_that_do_not_by_themselves() {
    let command = [
        "train",
        "gpt",
        "--layers",
        "24",
        "--heads",
        "16",
        "--width",
        "1024",
        "--context",
        "1024",
        "--batch-size",
        "32",
        "--plan",
        "2xT4",
        "--json",
    ];
    let output = plimsoll(&command);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let answer = json(&output);
    let rows = answer["rows"].as_array().expect("rows");
    let options = |row: &Value| row["options"].to_string();
    assert!(rows[0]["fits"] == true, "{}", rows[0]);
    assert!(
        rows.iter().any(|row| row["fits"] == true && options(row).contains("--activations")),
        "{answer:#}"
    );
}

#[test]
fn plan_of_our_own_command_is_its_plan() {
    let job = "train gpt --layers 2 --width 128 --heads 4 --context 64 --batch-size 8";
    let words: Vec<&str> = job.split(' ').collect();
    let own = json(&plimsoll(&[&words[..], &["--plan", "2xT4", "--json"]].concat()));
    let options = ["plan", "--gpu", "T4", "--devices", "2", "--json", "--", "plimsoll"];
    let output = plimsoll(&[&options, &words[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let answer = json(&output);
    crate::schema::check(&answer);
    assert_eq!(answer, own);
    let command = answer["rows"][0]["command"].as_str().expect("a command");
    assert!(command.starts_with("plimsoll train gpt ") && !command.contains("--gpu"), "{command}");

    let plan = |gpu: &str, more: &[&str]| {
        plimsoll(&[&["plan", "--gpu", gpu, "--", "plimsoll"], &words[..], more].concat())
    };
    let wrong = plan("T4", &["--no-such-option"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("--no-such-option"), "{}", stderr(&wrong));
    let foreign =
        plimsoll(&[&["plan", "--gpu", "T4", "--goal", "memory", "--", "plimsoll"], &words[..]].concat());
    assert_eq!(foreign.status.code(), Some(2));
    assert!(stderr(&foreign).contains("--goal memory is for PyTorch programs"), "{}", stderr(&foreign));
}

#[test]
fn a_plan_of_one_gpu_prints_sets_whose_commands_fit() {
    let job = "train gpt --model gpt2-large --batch-size 2";
    let job: Vec<&str> = job.split(' ').collect();
    let plan = |more: &[&str]| {
        let output =
            plimsoll(&[&["plan", "--gpu", "RTX-3060", "--json"], more, &["--", "plimsoll"], &job].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let answer = json(&output);
        crate::schema::check(&answer);
        answer
    };
    let answer = plan(&["--numbers", "changed"]);
    let (rows, tried) = (answer["rows"].as_array().expect("rows"), answer["tried"].as_array().expect("sets"));
    assert!(rows[0]["fits"] == true && tried.len() > rows.len(), "{answer:#}");
    assert!(rows.iter().any(|row| row["numbers"] == "changed" && row["fits"] == true));
    for row in rows.iter().filter(|row| row["fits"] == true).take(3) {
        let options = words(&row["options"]);
        assert!(
            !options.is_empty() && row["in_rust"][0].as_str().is_some_and(|it| it.ends_with(';')),
            "{row}"
        );
        let limit = (answer["limit_bytes"].as_u64().expect("bytes")
            - row["outside_bytes"].as_u64().expect("bytes"))
        .to_string();
        let device = ["--device", "sim:RTX-3060", "--memory-limit", &limit, "--steps", "3"];
        let output = plimsoll(&[&job[..], &options, &device].concat());
        assert_eq!(output.status.code(), Some(0), "{options:?}: {}", stderr(&output));
    }
}

#[test]
fn the_largest_batch_of_a_plan_fits_and_a_larger_one_does_not() {
    let job = "train gpt --layers 4 --heads 4 --width 256 --context 128 --batch-size 4";
    let job: Vec<&str> = job.split(' ').collect();
    let limit = ["--memory-limit", "1GiB"];
    let plan = ["plan", "--gpu", "T4", "--goal", "batch", "--json", "--", "plimsoll"];
    let output = plimsoll(&[&plan[..], &job, &limit].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let answer = json(&output);
    crate::schema::check(&answer);
    let rows = answer["rows"].as_array().expect("rows");
    // The limit of a plan includes the memory outside of the allocator, that of a run does not.
    let bytes = |value: &Value| value.as_u64().expect("bytes");
    let limit = (bytes(&answer["limit_bytes"]) - bytes(&rows[0]["outside_bytes"])).to_string();
    let limit = ["--memory-limit", &limit];
    let batch = |row: &Value| row["batch_size"].as_u64().expect("a batch");
    let as_it_is = rows.iter().find(|row| words(&row["options"]).len() == 2).expect("the job as it is");
    assert_eq!(batch(&rows[0]), answer["batch_size"].as_u64().expect("a batch"));
    assert!(batch(&rows[0]) > 2 * batch(as_it_is), "{rows:#?}");
    for row in [&rows[0], as_it_is] {
        let command = row["command"].as_str().expect("a command");
        assert_eq!(command.matches("--batch-size").count(), 1, "{command}");
        let options = words(&row["options"]);
        for (more, code) in [(0, 0), (batch(row) / 2 + 1, 4)] {
            let batch = (batch(row) + more).to_string();
            let rest: Vec<&str> =
                options.iter().copied().filter(|word| *word != "--batch-size").skip(1).collect();
            let tail = ["--batch-size", &batch, "--device", "sim:T4", "--steps", "3"];
            let output = plimsoll(&[&job[..job.len() - 2], &rest, &tail, &limit].concat());
            assert_eq!(output.status.code(), Some(code), "{batch} {rest:?}: {}", stderr(&output));
        }
    }
}
