//! `plimsoll doctor` as users run it.

use crate::program::{explained, json, kept, plimsoll, stderr, text};

#[test]
fn recordings_are_graded_good_usable_or_poor() {
    for (file, grade) in [
        ("stackless/complete.pickle.gz", "good: "),
        ("leak_layer.pickle.gz", "good: "),
        ("stackless/ring.pickle.gz", "usable: "),
        ("stackless/no_context.pickle.gz", "poor: "),
        ("stackless/never.pickle.gz", "poor: "),
    ] {
        let answer = text(&["doctor", &kept(file)]);
        assert!(answer.starts_with(grade), "{file}: {answer}");
    }
}

#[test]
fn what_lacks_a_stack_comes_with_its_reason_and_the_lines_that_record_it() {
    let answer = text(&["doctor", &kept("stackless/python.pickle.gz")]);
    for part in [
        "on a thread without Python frames",
        "record with stacks=\"all\"",
        "_record_memory_history(context=\"all\", stacks=\"all\"",
    ] {
        assert!(answer.contains(part), "{part} is not in: {answer}");
    }
}

#[test]
fn the_form_of_the_file_and_its_writer_are_reported() {
    for (file, form) in [
        ("features.p2.pickle.gz", "a pickle of protocol 2"),
        ("features.p5.pickle.gz", "a pickle of protocol 5"),
        ("little.json.gz", "JSON"),
    ] {
        assert!(text(&["doctor", &kept(file)]).contains(&format!("{form}, PyTorch")), "{file}");
        let output = plimsoll(&["doctor", &kept(file), "--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let answer = json(&output);
        assert_eq!((&answer["schema"], &answer["form"]), (&"plimsoll.doctor/1".into(), &form.into()));
    }
}

#[test]
fn an_explanation_says_the_same_of_its_data() {
    for (file, grade) in [("leak_layer.pickle.gz", "good"), ("stackless/never.pickle.gz", "poor")] {
        let quality = explained(&kept(file))["data_quality"].clone();
        let output = plimsoll(&["doctor", &kept(file), "--json"]);
        let mut answer = json(&output)["devices"][0].clone();
        answer.as_object_mut().expect("an object").remove("device");
        assert_eq!((&quality, &quality["grade"]), (&answer, &grade.into()), "{file}");
        let answer = text(&["explain", &kept(file)]);
        assert!(answer.contains(&format!("Data quality: {grade}; ")), "{answer}");
    }
}
