//! Damaged files: each flipped bit is an error that names the tensor, the file, and the checkpoint to resume from. Also
//! tests non-finite weights, and two trainers that use the same folder.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll::nn::{Linear, Module, Scope, Sequential};
use plimsoll::serialize::{self, Checkpoint, FolderLock, SafetensorsFile, SerializeError, StateDict, Strict};
use plimsoll::serialize::{Renamed, TensorSource};
use plimsoll::{Device, Tensor};

/// A folder that is deleted when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("plimsoll-flipped-{name}-{}", std::process::id()));
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

fn model(seed: u64) -> Sequential {
    Sequential::new(&Scope::new(&Device::cpu(), seed)).add("fc", |s| Linear::new(s, 3, 2)).unwrap()
}

fn loaded(path: &Path) -> Result<(), SerializeError> {
    Checkpoint::open(path)?.load_model(&model(2))
}

fn flip(path: &Path, bytes: &[u8], bit: usize) {
    let mut bytes = bytes.to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    fs::write(path, bytes).unwrap();
}

#[test]
fn every_flipped_bit_of_a_checkpoint_is_noticed() {
    let folder = Folder::new("every");
    let path = folder.file("checkpoint.safetensors");
    Checkpoint::default().model(&model(1)).value("step", 3).save(&path).unwrap();
    let bytes = fs::read(&path).unwrap();
    loaded(&path).unwrap();
    for bit in 0..bytes.len() * 8 {
        flip(&path, &bytes, bit);
        assert!(loaded(&path).is_err(), "bit {bit} of {}", bytes.len() * 8);
    }
}

#[test]
fn the_error_names_the_tensor_the_file_and_the_last_good_checkpoint() {
    let folder = Folder::new("names");
    let [first, second, latest] = ["a", "b", "c"].map(|name| folder.file(&format!("{name}.safetensors")));
    for path in [&first, &second, &latest] {
        Checkpoint::default().model(&model(1)).save(path).unwrap();
    }
    // The newer of the other two is also damaged, and a file with only tensors is not a checkpoint.
    let bytes = fs::read(&second).unwrap();
    flip(&second, &bytes, bytes.len() * 8 - 1);
    serialize::save(&model(1).state_dict(), folder.file("model.safetensors")).unwrap();
    let bytes = fs::read(&latest).unwrap();
    flip(&latest, &bytes, bytes.len() * 8 - 1);
    let said = loaded(&latest).unwrap_err().to_string();
    for part in ["`model.fc.", "c.safetensors", "the last good checkpoint is", "a.safetensors"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    fs::remove_file(&first).unwrap();
    let said = loaded(&latest).unwrap_err().to_string();
    assert!(said.contains("no other complete checkpoint"), "{said}");
}

#[test]
fn files_without_checksums_still_load() {
    let folder = Folder::new("old");
    let path = folder.file("old.safetensors");
    let header = br#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  "#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend([1.0f32, f32::NAN].iter().flat_map(|value| value.to_le_bytes()));
    fs::write(&path, bytes).unwrap();
    let file = SafetensorsFile::open(&path).unwrap();
    assert!(!file.has_checksums());
    file.verify().unwrap();
    assert_eq!(file.tensor("w", &Device::cpu()).unwrap().to_vec::<f32>().unwrap()[0], 1.0);
    assert_eq!(file.not_finite(), ["w"]);
}

#[test]
fn weights_that_are_not_finite_are_said_at_load() {
    let folder = Folder::new("finite");
    let path = folder.file("model.safetensors");
    let mut dict = StateDict::default();
    dict.insert("weight", Tensor::ones(&[2, 3], &Device::cpu()).unwrap());
    dict.insert("bias", Tensor::from_slice(&[1.0f32, f32::INFINITY], &[2], &Device::cpu()).unwrap());
    serialize::save(&dict, &path).unwrap();
    let source = serialize::open(&path).unwrap();
    let renamed = Renamed::new(source.as_ref(), |name| Some(format!("fc.{name}"))).unwrap();
    let keys = model(1).load_state_dict(&renamed, Strict::Yes).unwrap();
    assert_eq!(keys.not_finite, ["fc.bias"]);
    assert!(keys.to_string().contains("NaN or infinite values: fc.bias"), "{keys}");
}

#[test]
fn a_second_trainer_of_a_folder_is_refused_until_the_first_ends() {
    let folder = Folder::new("lock");
    let first = FolderLock::of(&folder.0).unwrap();
    let said = FolderLock::of(&folder.0).unwrap_err().to_string();
    assert!(said.contains(&format!("in use by process {}", std::process::id())), "{said}");
    drop(first);
    drop(FolderLock::of(&folder.0).unwrap());
}
