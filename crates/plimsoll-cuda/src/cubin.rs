//! A cache folder for machine code, keyed by its source text and the target for which it was compiled.
//!
//! A file has a SHA-256, the complete text and the code; the text is compared, so that two texts whose names have the
//! same hash are not confused. A file that cannot be read, is damaged, or is writable by other users counts as missing.
//! Files are written under a temporary name first. This protects against damage and shared folders, not against this
//! user's own programs.

use std::fs::{self, DirBuilder, Metadata, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// The size of the hash in bytes.
const HASH: usize = 32;

/// The cache folder, if there is one.
#[derive(Debug)]
pub(crate) struct Cubins {
    folder: Option<PathBuf>,
}

impl Cubins {
    /// `$XDG_CACHE_HOME/plimsoll/cuda`, or the same folder below `~/.cache`.
    pub(crate) fn from_env() -> Cubins {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?)).filter(|home| home.is_absolute());
        let cache = cache.or_else(|| Some(home()?.join(".cache")));
        Cubins { folder: cache.map(|cache| cache.join("plimsoll/cuda")) }
    }

    /// Reads the machine code of a text.
    pub(crate) fn get(&self, text: &str, compiled_for: &str) -> Option<Vec<u8>> {
        let path = self.path(text, compiled_for)?;
        let folder = fs::symlink_metadata(path.parent()?).ok()?;
        let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path).ok()?;
        if !folder.is_dir() || !is_own(&folder) || !is_own(&file.metadata().ok()?) {
            return None;
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).ok()?;
        let (hash, bytes) = bytes.split_at_checked(HASH)?;
        if hash != &Sha256::digest(bytes)[..] {
            return None;
        }
        let (head, rest) = bytes.split_at_checked(8)?;
        let length = usize::try_from(u64::from_le_bytes(head.try_into().ok()?)).ok()?;
        let (kept, code) = rest.split_at_checked(length)?;
        (kept == text.as_bytes() && code.starts_with(b"\x7fELF")).then(|| code.to_vec())
    }

    /// Stores the machine code of a text. Failures are ignored: the text is compiled again next time.
    pub(crate) fn put(&self, text: &str, compiled_for: &str, code: &[u8]) {
        let Some(path) = self.path(text, compiled_for) else { return };
        let bytes = [&(text.len() as u64).to_le_bytes(), text.as_bytes(), code].concat();
        let partial = path.with_extension(format!("{}.partial", std::process::id()));
        let folder = path.parent().unwrap_or(Path::new("/"));
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        // A folder made by an earlier version may be accessible to others.
        let made = made.and_then(|()| fs::set_permissions(folder, Permissions::from_mode(0o700)));
        let written = made.and_then(|()| {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
            file.write_all(&Sha256::digest(&bytes))?;
            file.write_all(&bytes)?;
            fs::rename(&partial, &path)
        });
        if written.is_err() {
            let _ = fs::remove_file(&partial);
        }
    }

    fn path(&self, text: &str, compiled_for: &str) -> Option<PathBuf> {
        let folder: &Path = self.folder.as_ref()?;
        Some(folder.join(format!("{:032x}-{compiled_for}.cubin", hash(text.as_bytes()))))
    }
}

/// Whether only this user can write to it.
fn is_own(it: &Metadata) -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == it.uid()) && it.mode() & 0o022 == 0
}

/// FNV-1a with 128 bits.
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
    fn code_comes_back_for_its_own_text_only_and_a_changed_or_cut_file_is_not_there() {
        let folder = std::env::temp_dir().join(format!("plimsoll-cubin-{}", std::process::id()));
        let cubins = Cubins { folder: Some(folder.clone()) };
        assert_eq!(cubins.get("text", "sm_90"), None);
        cubins.put("text", "sm_90", b"\x7fELF code");
        assert_eq!(cubins.get("text", "sm_90").as_deref(), Some(&b"\x7fELF code"[..]));
        assert_eq!((cubins.get("text", "sm_80"), cubins.get("other", "sm_90")), (None, None));
        let path = cubins.path("text", "sm_90").unwrap();
        let whole = fs::read(&path).unwrap();
        for place in 0..whole.len() {
            let mut changed = whole.clone();
            changed[place] ^= 1;
            fs::write(&path, &changed).unwrap();
            assert_eq!(cubins.get("text", "sm_90"), None, "{place}");
            fs::write(&path, &whole[..place]).unwrap();
            assert_eq!(cubins.get("text", "sm_90"), None, "{place}");
        }
        cubins.put("text", "sm_90", b"\x7fELF code");
        assert!(cubins.get("text", "sm_90").is_some(), "repaired");
        for (place, mode, usual) in [(&path, 0o622, 0o600), (&folder, 0o777, 0o700)] {
            fs::set_permissions(place, Permissions::from_mode(mode)).unwrap();
            assert_eq!(cubins.get("text", "sm_90"), None, "others can write to {}", place.display());
            fs::set_permissions(place, Permissions::from_mode(usual)).unwrap();
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_hash_is_fnv() {
        assert_eq!(hash(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }
}
