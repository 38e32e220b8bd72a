//! `plimsoll leaks` as users run it.

use crate::program::{json, kept, plimsoll, stderr, stdout, text};

#[test]
fn a_leak_is_reported_with_its_line_its_bytes_a_step_and_what_to_do() {
    let answer = text(&["leaks", &kept("leak_layer.pickle.gz")]);
    let first = answer.lines().next().expect("a line");
    assert!(
        first.starts_with("leaking: 64.00 KiB per step in 56 of 56 steps (certain), 3.50 MiB in total"),
        "{first}"
    );
    assert!(answer.contains("a module stores a tensor at each forward call"), "{answer}");
    assert!(answer.contains("Memory kept per step, by line") && answer.contains(".py"), "{answer}");
    let bars = answer.lines().filter(|row| row.contains("step")).filter(|row| row.contains('█')).count();
    assert!((10..=20).contains(&bars), "{answer}");
}

#[test]
fn growth_that_is_no_leak_is_named_as_such() {
    for (file, verdict) in [
        ("leak_loss.pickle.gz", "steady: "),
        ("gpt2_oom.pickle.gz", "too few steps to tell: no steps found"),
        ("leaks/varying.python.pickle.gz", "follows batch size: "),
    ] {
        let answer = text(&["leaks", &kept(file)]);
        assert!(answer.starts_with(verdict), "{file}: {answer}");
        assert!(!answer.contains("What stays of each step"), "{file}: {answer}");
    }
}

#[test]
fn only_fail_makes_a_leak_an_exit_code() {
    let code = |file: &str, more: &[&str]| plimsoll(&[&["leaks", &kept(file)], more].concat()).status.code();
    assert_eq!(code("leak_layer.pickle.gz", &[]), Some(0));
    assert_eq!(code("leak_layer.pickle.gz", &["--fail"]), Some(1));
    assert_eq!(code("leak_loss.pickle.gz", &["--fail"]), Some(0));
    assert_eq!(code("gpt2_oom.pickle.gz", &["--fail"]), Some(4), "nothing can be said of no step");
}

#[test]
fn json_has_every_step_of_the_whole_and_of_what_leaks() {
    let output = plimsoll(&["leaks", &kept("leak_layer.pickle.gz"), "--json", "--fail"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let answer = json(&output);
    assert_eq!((&answer["schema"], &answer["leaks"]), (&"plimsoll.leaks/1".into(), &true.into()));
    let device = &answer["devices"][0];
    let (whole, line) = (&device["whole"], &device["lines"][0]["course"]);
    assert_eq!((&whole["verdict"], &line["verdict"]), (&"leaking".into(), &"leaking".into()));
    assert_eq!(whole["bytes_per_step"], 64 << 10);
    for course in [whole, line] {
        let held = course["held_bytes_after_each_step"].as_array().expect("a row");
        assert_eq!(held.len() as u64, device["steps"].as_u64().expect("a number"));
        let held = |nth: usize| held[nth].as_u64().expect("bytes");
        assert_eq!(held(50) - held(49), 64 << 10, "a step adds what it leaks");
    }
}

#[test]
fn what_has_no_event_has_no_step() {
    let output = plimsoll(&["leaks", &kept("stackless/never.pickle.gz"), "--fail"]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stdout(&output).contains("plimsoll record"), "{}", stdout(&output));
}
