//! The vendor of a recording's devices: [`Snapshot::vendor`].
//!
//! PyTorch's packages for other devices write the same format, from their own allocators. These packages can be
//! recognised by frames in their files and libraries, by their settings, and by how they round sizes.

use super::{Frame, FrameId, Snapshot};

/// A vendor of devices other than NVIDIA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vendor {
    /// AMD, with ROCm: PyTorch's own allocator, translated.
    Amd,
    /// Huawei's Ascend, with `torch_npu`.
    Ascend,
    /// Moore Threads, with `torch_musa`.
    MooreThreads,
    /// Cambricon, with `torch_mlu`.
    Cambricon,
    /// Intel, with `torch.xpu`.
    Intel,
}

impl Vendor {
    /// The names of the vendor and its package.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd => "AMD (ROCm)",
            Self::Ascend => "Huawei Ascend (torch_npu)",
            Self::MooreThreads => "Moore Threads (torch_musa)",
            Self::Cambricon => "Cambricon (torch_mlu)",
            Self::Intel => "Intel (torch.xpu)",
        }
    }

    /// What this vendor means for the results, as a sentence.
    pub fn caveat(self) -> &'static str {
        match self {
            Self::Amd => {
                "its allocator is PyTorch's own, so the rules hold; sizes of the context and of libraries are not known"
            }
            Self::Ascend => {
                "its allocator adds 32 bytes to each request and has its own rules: recorded figures are exact; \
                 replays and other settings are approximations"
            }
            Self::MooreThreads | Self::Cambricon | Self::Intel => {
                "its allocator is a copy of PyTorch's with its own rules: recorded figures are exact; replays and \
                 other settings may be off"
            }
        }
    }

    /// Whether the vendor's allocator follows the same rules as PyTorch's, and so as ours.
    pub fn is_pytorchs(self) -> bool {
        self == Self::Amd
    }
}

/// Parts of file and function names that only one vendor has.
const MARKS: [(Vendor, &[&str]); 5] = [
    (Vendor::Ascend, &["torch_npu", "c10_npu::", "at_npu::", "libascendcl"]),
    (Vendor::MooreThreads, &["torch_musa", "c10::musa::", "libmusart"]),
    (Vendor::Cambricon, &["torch_mlu", "libcnrt"]),
    (Vendor::Intel, &["libtorch_xpu", "libc10_xpu", "c10::xpu::", "torch/xpu/memory.py"]),
    (
        Vendor::Amd,
        &["libtorch_hip", "libc10_hip", "libamdhip64", "c10::hip::", "HIPCachingAllocator", "/opt/rocm"],
    ),
];

/// The vendors' environment variables, which are among the settings.
const VARIABLES: [(Vendor, &str); 4] = [
    (Vendor::Ascend, "PYTORCH_NPU_ALLOC_CONF"),
    (Vendor::MooreThreads, "PYTORCH_MUSA_ALLOC_CONF"),
    (Vendor::Cambricon, "PYTORCH_MLU_ALLOC_CONF"),
    (Vendor::Amd, "PYTORCH_HIP_ALLOC_CONF"),
];

/// The bytes that Ascend's allocator adds to each request.
const ASCEND_MORE_BYTES: u64 = 32;
/// If at least this many blocks are rounded in this way, it is not a coincidence.
const FEW_BLOCKS: usize = 3;
const MIN_BLOCK_BYTES: u64 = 512;

impl Snapshot {
    /// The vendor, if there is evidence that it is not NVIDIA.
    pub fn vendor(&self) -> Option<Vendor> {
        let frames = (0..self.stacks.frame_count()).filter_map(FrameId::new);
        let marked = |frame: &Frame| {
            let texts = [self.texts.get(frame.filename), self.texts.get(frame.name)];
            let has = |marks: &[&str]| marks.iter().any(|mark| texts.iter().any(|text| text.contains(mark)));
            MARKS.iter().find(|(_, marks)| has(marks)).map(|&(vendor, _)| vendor)
        };
        let by_variable = || {
            let known = VARIABLES.iter().find(|(_, name)| self.setting(name).is_some());
            known.map(|&(vendor, _)| vendor)
        };
        let mut frames = frames.map(|id| self.stacks.get_frame(id));
        frames
            .find_map(marked)
            .or_else(by_variable)
            .or_else(|| self.is_rounded_as_ascend().then_some(Vendor::Ascend))
    }

    /// Whether every block of a small segment has a size to which Ascend's allocator would round its request. PyTorch's
    /// allocator does not enlarge a request that is a multiple of 512 bytes.
    fn is_rounded_as_ascend(&self) -> bool {
        let small = self.segments.iter().filter(|segment| segment.segment_type == super::SegmentType::Small);
        let blocks = small.flat_map(|segment| &segment.blocks);
        let held = blocks.filter(|block| block.state == super::BlockState::ActiveAllocated);
        let rounded = |bytes: u64| bytes.max(1).checked_next_multiple_of(MIN_BLOCK_BYTES);
        let mut telling = 0;
        for block in held {
            let Some(asked) = block.requested_size.get() else { return false };
            let theirs = asked.checked_add(ASCEND_MORE_BYTES).and_then(rounded);
            if theirs != Some(block.size) {
                return false;
            }
            telling += usize::from(theirs != rounded(asked));
        }
        telling >= FEW_BLOCKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A snapshot with one frame.
    fn of_frame(file: &str, name: &str) -> Snapshot {
        let mut snapshot = Snapshot::default();
        let [filename, name] = [file, name].map(|text| snapshot.texts.intern(text).unwrap());
        snapshot.stacks.frame(Frame { filename, name, line: 1, fx: None }).unwrap();
        snapshot
    }

    #[test]
    fn a_vendor_is_known_by_its_files_and_functions() {
        for (file, name, vendor) in [
            ("/x/site-packages/torch_npu/npu/memory.py", "empty_cache", Some(Vendor::Ascend)),
            ("??", "c10_npu::NPUCachingAllocator::malloc(unsigned long)", Some(Vendor::Ascend)),
            ("/x/site-packages/torch_musa/core/memory.py", "empty_cache", Some(Vendor::MooreThreads)),
            ("/x/site-packages/torch/lib/libc10_hip.so", "malloc", Some(Vendor::Amd)),
            ("/x/site-packages/torch/lib/libc10_cuda.so", "malloc", None),
            ("/home/me/train.py", "main", None),
        ] {
            assert_eq!(of_frame(file, name).vendor(), vendor, "{file} {name}");
        }
    }
}
