//! Saving and loading: PyTorch's files, safetensors, shards, and damaged files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use plimsoll::nn::{Linear, Module, Scope, Sequential};
use plimsoll::serialize::{self, PtFile, Renamed, SerializeError, StateDict, Strict, TensorSource};
use plimsoll::{CpuConfig, DType, Device, SimConfig, Tensor};
use serde_json::Value;

use crate::world::cnn;

/// A folder that is deleted when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("plimsoll-serialize-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.detach().to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

fn assert_recorded(name: &str, tensor: &Tensor, recorded: &Value) {
    let shape: Vec<usize> =
        recorded["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
    assert_eq!(
        (tensor.shape(), tensor.dtype().name()),
        (&shape[..], recorded["dtype"].as_str().unwrap()),
        "{name}"
    );
    let expected: Vec<f64> =
        recorded["values"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    assert_eq!(values(tensor), expected, "{name}");
}

fn refusal<T>(result: Result<T, SerializeError>) -> String {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_state_dict_of_pytorchs_has_its_names_types_shapes_and_values() {
    let table: Value = serde_json::from_str(include_str!("fixtures/pt.json")).unwrap();
    let file = serialize::open(fixture("state.pt")).unwrap();
    let recorded = table["state"].as_object().unwrap();
    assert_eq!(file.names().len(), recorded.len());
    for (name, recorded) in recorded {
        assert_recorded(name, &file.tensor(name, &Device::cpu()).unwrap(), recorded);
    }
    let sim = Device::sim(SimConfig::new(1 << 30));
    assert_eq!(file.tensor("conv.weight", &sim).unwrap().shape(), [2, 1, 3, 3]);
    assert!(refusal(file.tensor("none", &sim)).ends_with("there is no tensor `none`"));
}

#[test]
fn a_part_of_a_training_checkpoint_of_pytorchs_loads_by_name() {
    let table: Value = serde_json::from_str(include_str!("fixtures/pt.json")).unwrap();
    let file = PtFile::open(fixture("checkpoint.pt")).unwrap();
    assert!(file.names().contains(&"optimizer.state.4.exp_avg".to_owned()), "{:?}", file.names());
    let part = file.part("model");
    for (name, recorded) in table["model"].as_object().unwrap() {
        assert_recorded(name, &part.tensor(name, &Device::cpu()).unwrap(), recorded);
    }
}

#[test]
fn a_whole_model_and_a_legacy_file_are_refused_with_what_to_do() {
    let message = refusal(serialize::open(fixture("model.pt")));
    assert!(message.contains("it asks for `torch.nn.modules.container.Sequential`"), "{message}");
    assert!(message.contains("Save model.state_dict() instead"), "{message}");
    let message = refusal(serialize::open(fixture("function.pt")));
    assert!(
        message.contains("it asks for `posix.mkdir`") || message.contains("it asks for `os.mkdir`"),
        "{message}"
    );
    assert!(!Path::new("plimsoll-was-here").exists(), "nothing of a file is ever run");
    let message = refusal(serialize::open(fixture("legacy.pt")));
    assert!(message.contains("the format before PyTorch 1.6"), "{message}");
}

#[test]
fn tensors_of_other_kinds_and_other_pickles_are_refused_as_such() {
    let message = refusal(serialize::open(fixture("complex.pt")));
    assert!(
        message
            .contains("a tensor made by `torch.ComplexFloatStorage`, whose type or layout is not supported"),
        "{message}"
    );
    let folder = Folder::new("pickle");
    let path = folder.file("a.pt");
    // `pickle.dump({}, file)` of Python 3.8 or later.
    fs::write(&path, b"\x80\x04\x95\x02\x00\x00\x00\x00\x00\x00\x00}.").unwrap();
    let message = refusal(serialize::open(&path));
    assert!(message.contains("a pickle that torch.save did not write"), "{message}");
}

#[test]
fn a_damaged_pt_file_is_an_error_wherever_it_is_cut() {
    let folder = Folder::new("cut");
    let whole = fs::read(fixture("state.pt")).unwrap();
    let path = folder.file("cut.pt");
    for length in (0..whole.len()).step_by(97) {
        fs::write(&path, &whole[..length]).unwrap();
        assert!(serialize::open(&path).is_err(), "{length}");
    }
    // Flips a bit of a storage; the archive's checksum detects it.
    let place = whole.windows(8).position(|bytes| bytes == 1.0f64.to_le_bytes()).unwrap();
    let mut spoilt = whole.clone();
    spoilt[place] ^= 1;
    fs::write(&path, &spoilt).unwrap();
    let file = serialize::open(&path).unwrap();
    let message = refusal(file.tensor("float64", &Device::cpu()));
    assert!(message.contains("is damaged"), "{message}");
}

#[test]
fn what_is_saved_is_loaded_bit_for_bit_and_types_stay() {
    let folder = Folder::new("round");
    let pytorch = serialize::open(fixture("state.pt")).unwrap().state_dict(&Device::cpu()).unwrap();
    let path = folder.file("model.safetensors");
    serialize::save(&pytorch, &path).unwrap();
    let file = serialize::open(&path).unwrap();
    assert_eq!(file.names().len(), pytorch.len());
    for (name, tensor) in pytorch.iter() {
        let again = file.tensor(name, &Device::cpu()).unwrap();
        assert_eq!((again.dtype(), again.shape()), (tensor.dtype(), tensor.shape()), "{name}");
        assert_eq!(again.to_bytes().unwrap(), tensor.to_bytes().unwrap(), "{name}");
    }
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "no partial file stays");
}

/// Two layers that share a weight.
fn tied(device: &Device, seed: u64) -> Sequential {
    let scope = Scope::new(device, seed);
    let first = Linear::new(&scope.at("first"), 4, 4).unwrap();
    let second = Linear::of(&scope.at("second"), first.weight().clone(), None);
    Sequential::new(&scope).add("first", |_| Ok(first)).and_then(|m| m.add("second", |_| Ok(second))).unwrap()
}

#[test]
fn tied_weights_are_saved_once_and_stay_tied() {
    let (folder, device) = (Folder::new("tied"), Device::cpu());
    let (model, path) = (tied(&device, 1), folder.file("tied.safetensors"));
    assert_eq!(model.state_dict().names(), ["first.weight", "first.bias", "second.weight"], "as in PyTorch");
    serialize::save(&model.state_dict(), &path).unwrap();
    assert_eq!(serialize::open(&path).unwrap().names().len(), 2);
    let other = tied(&device, 2);
    other.load_state_dict(serialize::open(&path).unwrap().as_ref(), Strict::Yes).unwrap();
    assert_eq!(values(&other.parameters()[0]), values(&model.parameters()[0]));
    assert_eq!(other.parameters().len(), 2);
}

#[test]
fn all_keys_that_do_not_fit_are_reported_together_and_nothing_changes() {
    let device = Device::cpu_with(CpuConfig::default());
    let model = cnn(&device);
    let before: Vec<Vec<f64>> = model.parameters().iter().map(values).collect();
    let mut dict: StateDict = model
        .state_dict()
        .iter()
        .filter(|(name, _)| !name.starts_with("fc1"))
        .map(|(name, tensor)| (name.to_owned(), tensor.detach().zeros_like().unwrap()))
        .collect();
    dict.insert("fc2.weight", Tensor::ones(&[10, 33], &device).unwrap());
    dict.insert("extra", Tensor::ones(&[1], &device).unwrap());
    for strict in [Strict::Yes, Strict::No] {
        let Err(SerializeError::Keys(keys)) = model.load_state_dict(&dict, strict) else {
            panic!("not refused")
        };
        assert_eq!(keys.missing, ["fc1.weight", "fc1.bias"]);
        assert_eq!(keys.unexpected, ["extra"]);
        assert_eq!((keys.misshaped.len(), keys.misshaped[0].name.as_str()), (1, "fc2.weight"));
        assert_eq!(model.parameters().iter().map(values).collect::<Vec<_>>(), before);
    }
    dict.insert("fc2.weight", Tensor::zeros(&[10, 32], &device).unwrap());
    assert!(model.load_state_dict(&dict, Strict::Yes).is_err());
    let keys = model.load_state_dict(&dict, Strict::No).unwrap();
    assert_eq!((keys.missing.len(), keys.unexpected.len()), (2, 1), "what was left out is listed");
    assert!(values(&model.parameters()[0]).iter().all(|&x| x == 0.0));
}

#[test]
fn a_safetensors_file_that_is_cut_longer_or_overlapping_is_an_error() {
    let (folder, device) = (Folder::new("damaged"), Device::cpu());
    let path = folder.file("x.safetensors");
    serialize::save(&cnn(&device).state_dict(), &path).unwrap();
    let whole = fs::read(&path).unwrap();
    for length in (0..whole.len()).step_by(1009).chain([7, 8, 9, whole.len() - 1]) {
        fs::write(&path, &whole[..length]).unwrap();
        let message = refusal(serialize::open(&path));
        assert!(
            message.contains("cut short") || message.contains("not a safetensors file"),
            "{length}: {message}"
        );
    }
    fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
    assert!(refusal(serialize::open(&path)).contains("longer than its header says"));
    let file = |header: &str, data: usize| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(vec![0; data]);
        fs::write(&path, bytes).unwrap();
        refusal(serialize::open(&path))
    };
    let entry = |start, end| format!("{{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[{start},{end}]}}");
    let overlapping = file(&format!("{{\"a\":{},\"b\":{}}}", entry(0, 8), entry(4, 12)), 12);
    assert!(overlapping.contains("the header is damaged"), "{overlapping}");
    let too_short = file(&format!("{{\"a\":{}}}", entry(0, 4)), 4);
    assert!(too_short.contains("the header is damaged"), "{too_short}");
    assert!(file("no json", 4).contains("the header is damaged"));
    assert!(refusal(serialize::open(folder.file("none"))).contains("No such file"));
}

#[test]
fn a_model_in_shards_loads_from_its_folder_and_a_wrong_index_is_an_error() {
    let (folder, device) = (Folder::new("shards"), Device::cpu());
    let model = cnn(&device);
    serialize::save_sharded(&model.state_dict(), &folder.0, 20_000).unwrap();
    let index = folder.file("model.safetensors.index.json");
    let text = fs::read_to_string(&index).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    let bytes: usize = model.parameters().iter().map(|parameter| parameter.numel() * 4).sum();
    assert_eq!(value["metadata"]["total_size"].as_u64(), Some(bytes as u64));
    assert!(value["weight_map"]["fc1.weight"].as_str().unwrap().starts_with("model-0000"));
    for path in [&folder.0, &index] {
        let other = cnn(&Device::cpu());
        plimsoll::no_grad(|| other.parameters()[0].zero_()).unwrap();
        other.load_state_dict(serialize::open(path).unwrap().as_ref(), Strict::Yes).unwrap();
        assert_eq!(values(&other.parameters()[0]), values(&model.parameters()[0]));
    }
    let check = |text: String, message: &str| {
        fs::write(&index, text).unwrap();
        let found = refusal(serialize::open(&folder.0));
        assert!(found.contains(message), "{found}");
    };
    check(text.replace("model-00001", "model-00009"), "it names files that do not exist: model-00009");
    check(
        text.replace("\"model-00001", "\"../model-00001"),
        "which is not the name of a file in the same folder",
    );
    check(text.replace("\"conv.weight\"", "\"conv.other\""), "`conv.other` should be in");
    check("{}".to_owned(), "it has no `weight_map`");
    check("[".to_owned(), "no index");
    fs::remove_file(&index).unwrap();
    assert!(refusal(serialize::open(&folder.0)).contains("model.safetensors"));
}

#[test]
fn a_simulated_model_has_nothing_to_save_and_leaves_no_file() {
    let folder = Folder::new("sim");
    let model = cnn(&Device::sim(SimConfig::new(1 << 30)));
    let message = refusal(serialize::save(&model.state_dict(), folder.file("x")));
    assert!(message.contains("computes no values"), "{message}");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
}

#[test]
fn a_folder_holds_the_model_that_was_saved_last_in_whatever_layout() {
    let (folder, device) = (Folder::new("layouts"), Device::cpu());
    let model = cnn(&device);
    let loaded = || {
        let other = cnn(&Device::cpu());
        other.load_state_dict(serialize::open(&folder.0).unwrap().as_ref(), Strict::Yes).unwrap();
        values(&other.parameters()[0])
    };
    for (value, shard_bytes) in [(1.0, 20_000), (2.0, u64::MAX), (3.0, 10_000), (4.0, 20_000)] {
        plimsoll::no_grad(|| model.parameters()[0].fill_(value)).unwrap();
        serialize::save_sharded(&model.state_dict(), &folder.0, shard_bytes).unwrap();
        assert!(loaded().iter().all(|&x| x == value), "{value} in shards of {shard_bytes}");
        // Readers that first look for the unsharded file must not find an old one.
        let [whole, index] =
            ["model.safetensors", "model.safetensors.index.json"].map(|name| folder.file(name).exists());
        assert!(whole != index, "{value}");
    }
}

const CHILD: &str = "PLIMSOLL_SERIALIZE_CHILD";

#[test]
#[ignore = "the child of another test: saves where there is no room"]
fn child_without_room() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let folder = PathBuf::from(folder);
    let model = cnn(&Device::cpu());
    plimsoll::no_grad(|| model.parameters()[0].fill_(5.0)).unwrap();
    let whole = serialize::save(&model.state_dict(), folder.join("whole.safetensors"));
    // The first shards fit on the disk, a later one does not.
    let shards = serialize::save_sharded(&model.state_dict(), &folder, 20_000);
    for message in [refusal(whole), refusal(shards)] {
        assert!(message.contains("was not saved: "), "{message}");
        assert!(message.contains("what was saved there before is unchanged"), "{message}");
    }
}

#[test]
fn without_room_on_the_disk_a_model_in_one_file_or_in_shards_stays() {
    let folder = Folder::new("full");
    let model = cnn(&Device::cpu());
    serialize::save(&model.state_dict(), folder.file("whole.safetensors")).unwrap();
    serialize::save_sharded(&model.state_dict(), &folder.0, 20_000).unwrap();
    let contents = || -> Vec<(PathBuf, Vec<u8>)> {
        let paths = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().path());
        let mut all: Vec<_> = paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
        all.sort();
        all
    };
    let before = contents();
    // The limit on file size is 16 kilobytes, so larger writes fail as on a full disk.
    let exe = std::env::current_exe().unwrap();
    let mut child = Command::new("sh");
    child.args(["-c", "trap '' XFSZ; ulimit -f 32; exec \"$@\"", "sh"]).arg(exe);
    child
        .args(["--exact", "serialize::child_without_room", "--ignored", "--nocapture"])
        .env(CHILD, &folder.0);
    assert!(child.stdout(Stdio::null()).status().unwrap().success());
    assert!(contents() == before, "every file is as it was, and no other is there");
    let other = cnn(&Device::cpu());
    other.load_state_dict(serialize::open(&folder.0).unwrap().as_ref(), Strict::Yes).unwrap();
}

#[test]
fn what_a_killed_process_left_goes_with_the_next_save_and_what_is_being_written_stays() {
    let folder = Folder::new("abandoned");
    let [abandoned, written, other] =
        ["m.safetensors.partial-1", "m.safetensors.partial-2", "m.safetensors.partial-of-mine"]
            .map(|name| folder.file(name));
    for path in [&abandoned, &written, &other] {
        fs::write(path, "half").unwrap();
    }
    let writer = fs::File::open(&written).unwrap();
    writer.lock().unwrap();
    let mut dict = StateDict::default();
    dict.insert("w", Tensor::ones(&[2], &Device::cpu()).unwrap());
    serialize::save(&dict, folder.file("m.safetensors")).unwrap();
    assert!(!abandoned.exists(), "nobody writes it");
    assert!(written.exists() && other.exists());
}

#[test]
fn a_prefix_that_is_too_much_or_missing_is_named_and_long_lists_are_short() {
    let device = Device::cpu();
    let layer = |scope: &Scope| {
        (0..9).try_fold(Sequential::new(scope), |layers, i| {
            layers.add(&format!("fc{i}"), |s| Linear::new(s, 2, 2))
        })
    };
    let model = layer(&Scope::new(&device, 1)).unwrap();
    let saved = model.state_dict();
    let under: StateDict =
        saved.iter().map(|(name, tensor)| (format!("module.{name}"), tensor.clone())).collect();
    let message = model.load_state_dict(&under, Strict::Yes).unwrap_err().to_string();
    let missing = "missing: fc0.weight, fc0.bias, fc1.weight, fc1.bias, fc2.weight, fc2.bias, fc3.weight, fc3.bias, \
                   fc4.weight, fc4.bias, fc5.weight, fc5.bias and 6 more";
    assert!(message.contains(missing), "{message}");
    let hint =
        "with `module.` removed from the state dict's names, 18 missing names are found: see `Renamed`";
    assert!(message.ends_with(hint), "{message}");
    let outer = Sequential::new(&Scope::new(&device, 1)).add("net", layer).unwrap();
    let message = outer.load_state_dict(&saved, Strict::Yes).unwrap_err().to_string();
    let hint = "with `net.` added to the state dict's names, 18 missing names are found: see `Renamed`";
    assert!(message.ends_with(hint), "{message}");
    let renamed = Renamed::new(&saved, |name| Some(format!("net.{name}"))).unwrap();
    let keys = outer.load_state_dict(&renamed, Strict::Yes).unwrap();
    assert_eq!(keys.to_string(), "all keys of the state dict fit Sequential");
    let same = |name: &str| name.split('.').next_back().map(str::to_owned);
    let twice = Renamed::new(&saved, same).err().unwrap().to_string();
    assert!(twice.contains("`fc0.weight` and `fc1.weight` would both be `weight`"), "{twice}");
}

#[test]
fn a_folder_with_pytorchs_file_only_opens() {
    let folder = Folder::new("bin");
    fs::copy(fixture("state.pt"), folder.file("pytorch_model.bin")).unwrap();
    let names = serialize::open(&folder.0).unwrap().names();
    assert_eq!(names, PtFile::open(fixture("state.pt")).unwrap().names());
}
