//! GPUs of other vendors. PyTorch for them is a different build with different kernels, which this table cannot
//! describe. Their names are listed only so that the error can say so.

/// AMD's accelerators, with the memory of each device that PyTorch sees, in GiB. Each die of an MI250 is a device.
const INSTINCT: &[(&str, u64)] = &[
    ("MI100", 32),
    ("MI210", 64),
    ("MI250", 64),
    ("MI300A", 128),
    ("MI300X", 192),
    ("MI308X", 192),
    ("MI325X", 256),
    ("MI350X", 288),
    ("MI355X", 288),
];

/// The vendor that a name belongs to, if it is not NVIDIA's, and the memory in bytes, if it is known. `plain` is the
/// name in lower case, without spaces and hyphens.
pub(crate) fn of(plain: &str) -> Option<(&'static str, Option<u64>)> {
    let model = plain.trim_start_matches("amd").trim_start_matches("instinct");
    let is_numbered = |name: &str, prefix| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let known = INSTINCT.iter().filter(|(name, _)| model.starts_with(&name.to_ascii_lowercase()));
    let known = known.max_by_key(|(name, _)| name.len()).map(|(_, gib)| gib << 30);
    if known.is_some()
        || is_numbered(model, "mi")
        || is_numbered(model, "rx")
        || plain.contains("radeon")
        || plain.starts_with("amd")
    {
        return Some(("AMD", known));
    }
    let others = [
        ("gaudi", "Intel"),
        ("hpu", "Intel"),
        ("arc", "Intel"),
        ("tpu", "Google"),
        ("trainium", "AWS"),
        ("ascend", "Huawei"),
    ];
    others.into_iter().find(|(name, _)| plain.starts_with(name)).map(|(_, vendor)| (vendor, None))
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn other_vendors_are_recognised_by_their_names() {
        assert_eq!(of("mi300x"), Some(("AMD", Some(192 << 30))));
        assert_eq!(of("amdinstinctmi355x"), Some(("AMD", Some(288 << 30))));
        assert_eq!(of("mi250x"), Some(("AMD", Some(64 << 30))));
        assert_eq!(of("mi999"), Some(("AMD", None)));
        assert_eq!(of("rx7900xtx"), Some(("AMD", None)));
        assert_eq!(of("gaudi3"), Some(("Intel", None)));
        for name in ["a100", "rtx4090", "h9000", "", "mini", "t4"] {
            assert_eq!(of(name), None, "{name}");
        }
    }
}
