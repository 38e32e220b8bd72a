//! `plimsoll train image`: folders of images as users have them.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::program::images::{png, put, stripes};
use crate::program::{Folder, json, plimsoll, stderr, stdout};

fn image(args: &[&str]) -> Output {
    plimsoll(&[&["train", "image", "--image-size", "16", "--augment", "none"], args].concat())
}

fn result(args: &[&str]) -> Value {
    let output = image(&[args, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
    json(&output)
}

#[test]
fn a_folder_of_two_classes_is_learned() {
    let folder = Folder::new("images");
    stripes(&folder.0, 40);
    let run = result(&["--data", folder.path(), "--batch-size", "8", "--epochs", "4"]);
    assert_eq!((&run["job"]["train_images"], &run["job"]["test_images"]), (&72.into(), &8.into()));
    assert_eq!(run["job"]["classes"], serde_json::json!(["left", "upper"]));
    assert!(run["accuracy"].as_f64() >= Some(0.9), "{}", run["summary"]);
    assert!(run["images_per_s"].as_f64() > Some(0.0));
    let sim = result(&["--data", folder.path(), "--batch-size", "8", "--epochs", "4", "--device", "sim"]);
    assert_eq!(sim["memory"]["peak_by_category"], run["memory"]["peak_by_category"]);
}

#[test]
fn a_run_on_images_is_resumed_to_the_bit_with_its_random_changes() {
    let folder = Folder::new("images-resume");
    stripes(&folder.0.join("data"), 8);
    let data = folder.file("data");
    let job = ["train", "image", "--image-size", "16", "--batch-size", "4", "--data", &data];
    let run = |more: &[&str]| {
        let output = plimsoll(&[&job[..], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    };
    let (whole, parts) = (folder.file("whole"), folder.file("parts"));
    run(&["--steps", "6", "--save", &whole]);
    run(&["--steps", "2", "--save", &parts]);
    run(&["--steps", "6", "--resume", &parts, "--workers", "0"]);
    for file in ["model.safetensors", "classes.json"] {
        let read = |folder: &str| fs::read(Path::new(folder).join(file)).expect("a saved file");
        assert!(read(&whole) == read(&parts), "{file} differs");
    }
    // The same folder with one more image counts as other data.
    put(&folder.0.join("data/left"), "more.png", &png(9, 1, |_, _| 9));
    let refused = plimsoll(&[&job[..], &["--resume", &parts]].concat());
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("the training data differ"), "{}", stderr(&refused));
}

#[test]
fn parts_may_be_folders_and_val_another_one() {
    let folder = Folder::new("images-parts");
    stripes(&folder.0.join("both/train"), 6);
    stripes(&folder.0.join("both/val"), 2);
    let run = result(&["--data", &folder.file("both"), "--steps", "1"]);
    assert_eq!((&run["job"]["train_images"], &run["job"]["test_images"]), (&12.into(), &4.into()));
    let (train, val) = (folder.file("both/train"), folder.file("both/val"));
    let run = result(&["--data", &train, "--val", &val, "--steps", "1"]);
    assert_eq!((&run["job"]["train_images"], &run["job"]["test_images"]), (&12.into(), &4.into()));
    put(&folder.0.join("both/val/third"), "1.png", &png(9, 1, |_, _| 9));
    let other = image(&["--data", &train, "--val", &val]);
    assert_eq!(other.status.code(), Some(3));
    assert!(stderr(&other).contains("class `third` is in only one of"), "{}", stderr(&other));
}

#[test]
fn a_resnet_is_trained_and_resumed_with_its_running_statistics() {
    let folder = Folder::new("images-resnet");
    stripes(&folder.0.join("data"), 4);
    let data = folder.file("data");
    let job = ["--data", &data, "--model", "resnet18", "--batch-size", "2"];
    let (whole, parts) = (folder.file("whole"), folder.file("parts"));
    let straight = result(&[&job[..], &["--steps", "2", "--save", &whole]].concat());
    assert_eq!(straight["parameters"], 11_177_538, "torchvision's resnet18(num_classes=2)");
    result(&[&job[..], &["--steps", "1", "--save", &parts]].concat());
    result(&[&job[..], &["--steps", "2", "--resume", &parts]].concat());
    let weights =
        |folder: &str| fs::read(Path::new(folder).join("model.safetensors")).expect("saved weights");
    assert!(weights(&whole) == weights(&parts));
}

#[test]
fn bad_folders_have_clear_errors() {
    let folder = Folder::new("images-bad");
    let check = |args: &[&str], code: i32, part: &str| {
        let output = image(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "`{part}` is not in: {}", stderr(&output));
        assert_eq!(stdout(&output), "");
    };
    check(&[], 2, "a subfolder of JPEG or PNG images for each class:\n  photos/cat/1.jpg");
    check(&["--data", "/no/such/folder"], 3, "/no/such/folder");
    check(&["--data", folder.path()], 3, "no classes in");
    stripes(&folder.0.join("a"), 4);
    let data = folder.file("a");
    check(&["--data", folder.path()], 3, "has one class only, `a`; a classifier needs two");
    check(&["--data", &data, "--image-size", "4"], 2, "cannot be used multiple times");
    let small = plimsoll(&["train", "image", "--data", &data, "--image-size", "4"]);
    assert!(stderr(&small).contains("--image-size 4 is too small for cnn"), "{}", stderr(&small));
    // A damaged image is named in the error, and can be skipped.
    put(&folder.0.join("a/left"), "cut.png", &png(9, 3, |_, _| 9)[..60]);
    put(&folder.0.join("a/left"), "notes.txt", b"not an image");
    check(&["--data", &data, "--steps", "9"], 3, "or skip damaged images (--skip-damaged)");
    let run = result(&["--data", &data, "--steps", "1", "--skip-damaged"]);
    assert_eq!((&run["job"]["skipped_images"], &run["job"]["other_files"]), (&1.into(), &1.into()));
    fs::create_dir_all(folder.0.join("a/empty")).expect("a folder");
    check(&["--data", &data], 3, "no images of class");
}
