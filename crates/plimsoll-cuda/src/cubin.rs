//! A folder that keeps machine code, by the text that it comes from and what it was compiled for.
//!
//! A file has the whole text beside the code, so that two texts of one hash are not taken for each other. A file that
//! cannot be read, or is cut short, counts as not there; one is written under another name first.

use std::fs;
use std::path::PathBuf;

/// The folder, if there is one.
#[derive(Debug)]
pub(crate) struct Cubins {
    folder: Option<PathBuf>,
}

impl Cubins {
    /// `$XDG_CACHE_HOME/plimsoll/cuda`, or the same below `~/.cache`.
    pub(crate) fn from_env() -> Cubins {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
        Cubins { folder: cache.or_else(home).map(|cache| cache.join("plimsoll/cuda")) }
    }

    /// The code of a text.
    pub(crate) fn get(&self, text: &str, compiled_for: &str) -> Option<Vec<u8>> {
        let bytes = fs::read(self.path(text, compiled_for)?).ok()?;
        let (head, rest) = bytes.split_at_checked(8)?;
        let length = usize::try_from(u64::from_le_bytes(head.try_into().ok()?)).ok()?;
        let (kept, code) = rest.split_at_checked(length)?;
        (kept == text.as_bytes() && code.starts_with(b"\x7fELF")).then(|| code.to_vec())
    }

    /// Keeps the code of a text. That it cannot is no reason to fail: the text is compiled again next time.
    pub(crate) fn put(&self, text: &str, compiled_for: &str, code: &[u8]) {
        let Some(path) = self.path(text, compiled_for) else { return };
        let bytes = [&(text.len() as u64).to_le_bytes(), text.as_bytes(), code].concat();
        let partial = path.with_extension(format!("{}.partial", std::process::id()));
        let _ = path.parent().map(fs::create_dir_all);
        if fs::write(&partial, bytes).and_then(|()| fs::rename(&partial, &path)).is_err() {
            let _ = fs::remove_file(&partial);
        }
    }

    fn path(&self, text: &str, compiled_for: &str) -> Option<PathBuf> {
        let folder = self.folder.as_ref()?;
        Some(folder.join(format!("{:032x}-{compiled_for}.cubin", hash(text.as_bytes()))))
    }
}

/// FNV-1a of 128 bits.
fn hash(bytes: &[u8]) -> u128 {
    let step = |hash: u128, &byte: &u8| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    };
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_comes_back_for_its_own_text_only_and_a_cut_file_is_not_there() {
        let folder = std::env::temp_dir().join(format!("plimsoll-cubin-{}", std::process::id()));
        let cubins = Cubins { folder: Some(folder.clone()) };
        assert_eq!(cubins.get("text", "sm_90"), None);
        cubins.put("text", "sm_90", b"\x7fELF code");
        assert_eq!(cubins.get("text", "sm_90").as_deref(), Some(&b"\x7fELF code"[..]));
        assert_eq!((cubins.get("text", "sm_80"), cubins.get("other", "sm_90")), (None, None));
        let path = cubins.path("text", "sm_90").unwrap();
        let cut = fs::read(&path).unwrap()[..12].to_vec();
        fs::write(&path, cut).unwrap();
        assert_eq!(cubins.get("text", "sm_90"), None);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_hash_is_fnv() {
        assert_eq!(hash(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }
}
