//! `plimsoll calibrate`: without a GPU; on the stand-in as an H100, whose row in the table it must reproduce; and with
//! that row as a GPU for `predict`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use plimsoll_needs::needs;
use plimsoll_standin::settings;
use serde_json::Value;

use crate::program::{Folder, json, stderr, stdout};
use crate::schema;
use crate::standin;
use crate::torch::{Torch, answer};

/// `plimsoll calibrate` on this GPU, without a Python on the path.
fn calibrated(folder: &Folder, gpu: &str, options: &[&str]) -> Output {
    let empty = folder.file("no-python");
    fs::create_dir_all(&empty).expect("a folder");
    let mut command = on(folder, gpu, 1);
    command.env("PATH", empty).env_remove("VIRTUAL_ENV").arg("calibrate").args(options);
    command.output().expect("it starts")
}

/// A command on a simulated GPU that charges memory like a real one.
fn on(folder: &Folder, gpu: &str, devices: u32) -> Command {
    let mut command = standin::command(folder);
    command
        .env(settings::GPU, gpu)
        .env(settings::CONTEXT, "laws")
        .env(settings::DEVICES, devices.to_string());
    command.current_dir(folder.path());
    command
}

/// The figures of an answer: owner, bytes, and whether it equals the table's.
fn figures(answer: &Value) -> Vec<(&str, u64, Option<bool>)> {
    let rows = answer["figures"].as_array().expect("figures").iter();
    rows.map(|it| {
        (it["owner"].as_str().expect("a name"), it["bytes"].as_u64().expect("bytes"), it["equal"].as_bool())
    })
    .collect()
}

#[test]
fn without_a_gpu_it_says_so_and_exits_with_3() {
    let run = |options: &[&str]| {
        let program = Path::new(env!("CARGO_BIN_EXE_plimsoll"));
        let mut command = Command::new(program);
        command.arg("calibrate").args(options).env("LD_LIBRARY_PATH", "").env_remove("LD_PRELOAD");
        command.output().expect("it starts")
    };
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("measures a GPU of this machine"), "{}", stderr(&output));
    let failure = json(&run(&["--json"]));
    assert_eq!((&failure["schema"], &failure["exit"]), (&"plimsoll.error/1".into(), &3.into()));
}

#[test]
fn on_the_simulated_h100_it_reproduces_the_row_of_the_table() {
    let folder = Folder::new("calibrate-h100");
    let output = calibrated(&folder, "H100", &["--json", "-o", "h100.json"]);
    let answer = answer(&output, 0);
    schema::check(&answer);
    assert_eq!(
        figures(&answer),
        [
            ("the driver's reserve", 503_316_480, Some(true)),
            ("cuInit", 0, None),
            ("context", 552_402_944, Some(true)),
            ("1,000 requests of 1 KiB", 2 << 20, Some(true)),
            ("a request of 1 MiB + 1 B", 2 << 20, Some(true)),
            ("a request of 2 MiB + 1 B", 4 << 20, Some(true)),
            ("stacks of 2 KiB", 276_824_064, Some(true)),
            ("stacks of 4 KiB", 553_648_128, Some(true)),
            ("128 streams", 73_400_320, Some(true)),
        ]
    );
    assert_eq!(
        answer["summary"],
        "NVIDIA H100 80GB HBM3: 9 figures measured; 8 are equal to the table's row of the H100 (within a page of 2 MiB)"
    );
    let written: Value =
        serde_json::from_str(&fs::read_to_string(folder.file("h100.json")).expect("a row")).expect("JSON");
    assert_eq!(written, answer);
    // The file is not replaced without --force.
    assert_eq!(calibrated(&folder, "H100", &["-o", "h100.json"]).status.code(), Some(2));
    let output = calibrated(&folder, "H100", &["-o", "h100.json", "--force"]);
    let text = stdout(&output);
    assert!(text.starts_with("NVIDIA H100 80GB HBM3: 9 figures measured; 8 are equal"), "{text}");
    assert!(
        text.contains("     552,402,944       552,402,944  context (NVML, before cuInit and after"),
        "{text}"
    );
    assert!(text.contains("next: plimsoll predict --gpu h100.json -- python train.py"), "{text}");
}

#[test]
fn a_gpu_that_nobody_measured_gets_a_row_of_its_own() {
    let folder = Folder::new("calibrate-custom");
    let gpu =
        "custom:name=NewCard,card=NVIDIA NewCard,memory=15GiB,cc=12.0,sms=70,context=200MiB,reserve=100MiB";
    let answer = answer(&calibrated(&folder, gpu, &["--json"]), 0);
    schema::check(&answer);
    assert_eq!((&answer["listed"], &answer["card"]), (&Value::Null, &"NVIDIA NewCard".into()));
    assert_eq!(answer["known"]["context"], 200 << 20);
    assert_eq!(answer["known"]["reserve"], 100 << 20);
    assert_eq!(answer["properties"]["sms"], 70);
    let context = figures(&answer).into_iter().find(|(owner, ..)| *owner == "context");
    assert_eq!(context, Some(("context", 200 << 20, Some(false))), "the rule says 210 MiB");
}

#[test]
fn a_python_that_was_asked_for_and_fails_makes_the_answer_incomplete() {
    let folder = Folder::new("calibrate-python");
    let output = calibrated(&folder, "H100", &["--python", "/no/such/python"]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("PyTorch and its libraries were not measured: /no/such/python"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn the_hosts_factor_is_a_number_to_copy() {
    let output = crate::program::plimsoll(&["calibrate", "--host", "--json"]);
    let answer = answer(&output, 0);
    schema::check(&answer);
    assert!(answer["factor"].as_f64().is_some_and(|factor| factor > 0.01), "{answer}");
    assert!(crate::program::text(&["calibrate", "--host"]).starts_with("host factor "));
}

const PROGRAM: &str = "
import torch
model = torch.nn.Linear(4096, 4096).cuda()
model(torch.ones(64, 4096, device='cuda')).sum().backward()
print(torch.cuda.mem_get_info())
";

/// A row that is made on the simulated H100, with PyTorch and NCCL, predicts what `--gpu H100` predicts.
#[needs(pytorch)]
#[test]
fn a_row_with_pytorch_and_nccl_predicts_what_the_table_predicts() {
    let torch = Torch::new("calibrate-torch", PROGRAM);
    let python = torch.python.join(" ");
    let mut command = on(&torch.folder, "H100", 2);
    command.env(settings::SHARED, torch.folder.path());
    let output = command
        .args(["calibrate", "--json", "--python", &python, "-o", "row.json"])
        .output()
        .expect("it starts");
    let row = answer(&output, 0);
    schema::check(&row);
    assert!(figures(&row).iter().all(|(_, _, equal)| *equal != Some(false)), "{row:#}");
    for (key, bytes) in [
        ("kernels", 96_468_992),
        ("kernels_eager", 767_557_632),
        ("cublas", 71_303_168),
        ("cudnn", 16_777_216),
        ("cufft", 8_388_608),
        ("cusolver", 100_663_296),
        ("cusparse", 2_097_152),
        ("streams", 73_400_320),
        ("nccl", 111_149_056),
    ] {
        assert_eq!(row["known"][key], bytes, "{key}: {row:#}");
    }
    let predicted = |gpu: &str| answer(&torch.predict(&["--gpu", gpu, "--json"], &[]), 0);
    let (table, own) = (predicted("H100"), predicted(&torch.folder.file("row.json")));
    for key in ["totals", "outside"] {
        assert_eq!(table[key], own[key], "{key}");
    }
    assert_eq!(table["verdict"]["spare_bytes"], own["verdict"]["spare_bytes"]);
}
