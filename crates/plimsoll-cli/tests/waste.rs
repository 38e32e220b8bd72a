//! Memory that is live at the peak but not read again, in `plimsoll predict`. For programs that waste memory
//! (`waste/planted`), the printed peaks equal those of the program with the lines pasted. For programs that do not
//! (`waste/honest`), nothing is reported.

use std::fs;
use std::path::Path;
use std::process::Output;

use plimsoll_needs::needs;
use serde_json::Value;

use crate::program::{json, plimsoll, stderr, stdout};
use crate::standin;
use crate::torch::{Torch, answer};

/// The programs of a folder, by name.
fn programs(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/waste").join(folder);
    let mut found: Vec<_> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            (name, fs::read_to_string(&path).expect("a program"))
        })
        .collect();
    found.sort();
    found
}

fn predict(torch: &Torch) -> Output {
    torch.predict(&["--json"], &[])
}

/// Predicts a program with planted waste, pastes the lines by hand, and predicts it again.
fn check_planted(name: &str, program: &str) -> Value {
    let torch = Torch::new(&format!("waste-{name}"), program);
    let found = answer(&predict(&torch), 0);
    let waste = &found["waste"];
    let rows = waste["rows"].as_array().unwrap_or_else(|| panic!("{name}: no waste found: {found:#}"));
    let mut names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let planted = program.lines().next().and_then(|line| line.strip_prefix("# not needed at the peak: "));
    assert_eq!(Some(names.join(", ").as_str()), planted, "{name}: {waste:#}");
    let mut lines: Vec<String> = program.lines().map(str::to_owned).collect();
    let mut rows = rows.clone();
    rows.sort_by_key(|row| (std::cmp::Reverse(row["after"].as_u64()), row["replaces"].as_u64()));
    for row in rows {
        let number = |key: &str| usize::try_from(row[key].as_u64().expect("a number")).expect("a number");
        let (after, replaces) = (number("after"), number("replaces"));
        let text = |key: &str| row[key].as_str().expect("a text");
        let line = format!("{}{}", text("indent"), text("text"));
        lines.splice(after - replaces..after, [line]);
    }
    let pasted = Torch::new(&format!("waste-pasted-{name}"), &lines.join("\n"));
    let again = answer(&predict(&pasted), 0);
    let peak = |it: &Value| it["peak_allocated_bytes"].as_u64().expect("a peak");
    assert_eq!(peak(&again["judged"]), peak(&waste["together"]), "{name}: {waste:#}");
    assert!(peak(&waste["together"]) < peak(&found["judged"]), "{name}");
    found
}

#[needs(pytorch)]
#[test]
fn the_line_that_deletes_what_is_not_read_again_gives_the_printed_peak() {
    let (name, program) =
        programs("planted").into_iter().find(|(name, _)| name == "loopcarried").expect("it");
    check_planted(&name, &program);
    let torch = Torch::new("waste-text", &program);
    let text = stdout(&torch.predict(&[], &[]));
    let said = "390.62 MiB live at the peak are not read again: `x` (train.py:13): `del x` after line 15 (indented\n  \
                like line 14) lowers the peak from 796.54 MiB to 412.02 MiB";
    assert!(text.contains(said), "{text}");
}

/// The new line belongs outside the `else`, and the recording repeats this.
#[needs(pytorch)]
#[test]
fn a_recording_contains_the_advice_of_its_prediction() {
    let (_, program) = programs("planted").into_iter().find(|(name, _)| name == "branches").expect("it");
    let torch = Torch::new("waste-recorded", &program);
    let recording = torch.folder.file("recording.pickle");
    let text = stdout(&torch.predict(&["--snapshot", &recording], &[]));
    let said =
        "`images` (train.py:8): `del images` after line 12 (indented like line 9) lowers the peak from ";
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(plain(&text).contains(said), "{text}");
    let explained = plimsoll(&["explain", "--json", &recording]);
    let waste = &json(&explained)["devices"][0]["prediction"]["waste"];
    assert_eq!(waste["rows"][0]["text"], "del images", "{}", stdout(&explained));
    assert!(plain(&stdout(&plimsoll(&["explain", &recording]))).contains(said));
    // Python reads it as before.
    let check = "import pickle, sys; print(sorted(pickle.load(open(sys.argv[1], 'rb'))))";
    let keys = std::process::Command::new(&torch.python[0]).args(["-c", check, &recording]).output();
    let keys = String::from_utf8(keys.expect("it starts").stdout).expect("text");
    assert!(keys.contains("'device_traces'") && keys.contains("'plimsoll_predict'"), "{keys}");
}

#[needs(pytorch, nightly)]
#[test]
fn a_plan_shows_the_line_as_a_further_choice_and_does_not_choose_it() {
    let (_, program) = programs("planted").into_iter().find(|(name, _)| name == "loopcarried").expect("it");
    let torch = Torch::new("waste-plan", &program);
    let train = torch.folder.file("train.py");
    let mut args =
        vec!["plan", "--gpu=640MiB", "--cc=8.0", "--context=0", "--json", "--numbers=identical", "--"];
    args.extend(torch.python.iter().map(String::as_str).chain([train.as_str()]));
    let plan = answer(&plimsoll(&args), 4);
    let change = &plan["code_change"];
    assert_eq!((&change["lines"][0]["text"], &change["lines"][0]["after"]), (&"del x".into(), &15.into()));
    let (row, base) = (&change["tried"][0], &plan["tried"][0]);
    assert_eq!((&row["set"], &row["fits"], &base["fits"]), (&"".into(), &true.into(), &false.into()));
    // 100,000 rows of 1,024 values are freed.
    let peak = |it: &Value| it["peak_allocated_bytes"].as_u64().expect("a peak");
    assert!(peak(row) + 380 * (1 << 20) < peak(base), "{change:#}");
    assert!(plan["chosen"].is_null(), "{plan:#}");
}

/// Names that no line may delete: a closure uses one, a generator reads another later, `locals()` reads all of
/// them, and a loop reads one in its next iteration.
const NEEDED: &str = "
import torch
def closed():
    x = torch.ones(1 << 22, device='cuda')
    def read():
        return x.sum()
    torch.ones(1 << 24, device='cuda')
    return read()
def lazy():
    x = torch.ones(1 << 22, device='cuda')
    sums = (x[at].sum() for at in range(2))
    torch.ones(1 << 24, device='cuda')
    return list(sums)
def named():
    x = torch.ones(1 << 22, device='cuda')
    torch.ones(1 << 24, device='cuda')
    return locals()['x'].sum()
def rounds():
    x = torch.ones(1 << 22, device='cuda')
    for _ in range(3):
        y = (x * 2).sum()
        torch.ones(1 << 24, device='cuda')
    return y
def saved():
    w = torch.ones(1 << 22, device='cuda', requires_grad=True)
    x = w * 2
    loss = (x * x).sum()
    loss.backward()
for it in (closed, lazy, named, rounds, saved):
    it()
";

#[needs(pytorch)]
#[test]
fn what_is_read_later_is_never_deleted() {
    let torch = Torch::new("waste-needed", NEEDED);
    let output = predict(&torch);
    assert!(json(&output)["waste"].is_null(), "{}", stdout(&output));
    assert!(!stderr(&output).contains("running again without it"), "{}", stderr(&output));
}

#[needs(pytorch, nightly)]
#[test]
fn pasted_lines_give_the_printed_peaks() {
    for (name, program) in programs("planted") {
        check_planted(&name, &program);
    }
}

#[needs(pytorch, nightly)]
#[test]
fn nothing_is_said_about_honest_programs() {
    for (name, program) in programs("honest") {
        let torch = Torch::new(&format!("waste-{name}"), &program);
        let output = predict(&torch);
        let found = json(&output);
        assert!(found["waste"].is_null(), "{name}: {:#}", found["waste"]);
    }
}

/// Work on a second stream may still read memory after the last line that names it.
#[needs(pytorch)]
#[test]
fn nothing_is_said_about_a_program_that_makes_a_stream() {
    let (_, program) = programs("planted").into_iter().find(|(name, _)| name == "loopcarried").expect("it");
    for (name, stream) in [("generic", "torch.Stream(device='cuda')"), ("cuda", "torch.cuda.Stream()")] {
        let torch = Torch::new(&format!("waste-stream-{name}"), &format!("{program}\nside = {stream}\n"));
        let output = predict(&torch);
        assert!(json(&output)["waste"].is_null(), "{stream}: {}", stdout(&output));
    }
}

/// Keeps the graphs of 40 steps.
const SUMMED: &str = "
import torch
net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 10)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
running = 0
for step in range(40):
    loss = net(torch.randn(1024, 256, device='cuda')).square().mean()
    opt.zero_grad()
    loss.backward(retain_graph=True)
    opt.step()
    running = running + loss
print(running.item())
";

#[needs(pytorch)]
#[test]
fn run_names_a_sum_that_keeps_graphs() {
    let torch = Torch::new("waste-run", SUMMED);
    let output = standin::run(&torch, &[], &[]).output().expect("it starts");
    let said = "plimsoll: `running` (train.py:11) keeps the graph of each loss, 5.04 MiB each; write `running = running + \
                loss.detach()` instead\n";
    let text = stderr(&output);
    assert!(text.contains("plimsoll: memory grew by 5.04 MiB a step\n") && text.contains(said), "{text}");
}
