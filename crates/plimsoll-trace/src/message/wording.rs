//! One out-of-memory message: [`OutOfMemory`], for all versions of PyTorch.
//!
//! Values are found by the words around them, not by their order. So one parser reads the wordings of all versions, and
//! a shortened message still yields the values that it contains.

use super::size::leading;
use super::text::number;

/// The allocator or library that ran out of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// PyTorch's allocator for a GPU (CUDA, HIP, XPU).
    Allocator,
    /// PyTorch's allocator on Apple's GPUs.
    Metal,
    /// The CPU's memory.
    Cpu,
    /// The driver rejected a request of a library (cuBLAS, cuDNN, NCCL), or a call outside the allocator.
    Driver,
}

/// The contents of a message. Sizes are in bytes; they are not exact if the message gives them with two decimals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The allocator or library that ran out of memory.
    pub source: Source,
    /// `CUDA`, `HIP`, `XPU`, `MPS` or `CPU`; for a library, the failed call or its status.
    pub name: String,
    /// The number of the GPU.
    pub device: Option<u32>,
    /// The requested size.
    pub requested_bytes: Option<u64>,
    /// The GPU's total memory.
    pub capacity_bytes: Option<u64>,
    /// The GPU's free memory.
    pub free_bytes: Option<u64>,
    /// Memory allocated by this process, including private pools.
    pub allocated_bytes: Option<u64>,
    /// Memory allocated in private pools (CUDA graphs).
    pub private_bytes: Option<u64>,
    /// Memory reserved by this process's allocator.
    pub reserved_bytes: Option<u64>,
    /// The limit of this process.
    pub limit_bytes: Option<u64>,
    /// The total GPU memory that this process uses.
    pub process_bytes: Option<u64>,
    /// Other processes on the GPU: process ID and bytes.
    pub others: Vec<(u32, u64)>,
    /// Whether the message suggests expandable segments.
    pub suggests_expandable: bool,
}

impl OutOfMemory {
    fn of(source: Source, name: &str) -> OutOfMemory {
        OutOfMemory {
            source,
            name: name.to_owned(),
            device: None,
            requested_bytes: None,
            capacity_bytes: None,
            free_bytes: None,
            allocated_bytes: None,
            private_bytes: None,
            reserved_bytes: None,
            limit_bytes: None,
            process_bytes: None,
            others: Vec::new(),
            suggests_expandable: false,
        }
    }

    /// If a message begins in this line, the position at which it begins, its source, and the name of the memory.
    pub(super) fn begins(line: &str) -> Option<(usize, Source, &'static str)> {
        STARTS.iter().find_map(|&(words, source, name)| line.find(words).map(|at| (at, source, name)))
    }

    /// Parses the message at the beginning of a text, which may continue after it.
    pub(super) fn parse(text: &str) -> Option<OutOfMemory> {
        let (at, source, name) = Self::begins(text)?;
        let mut found = Self::of(source, name);
        let text = &text[at..];
        match source {
            Source::Allocator if text.starts_with(OF_A_POOL) => found.pool(text),
            Source::Allocator => found.allocator(text),
            Source::Metal => found.metal(text),
            Source::Cpu => found.requested_bytes = after(text, "tried to allocate "),
            Source::Driver => {}
        }
        Some(found)
    }

    fn allocator(&mut self, text: &str) {
        self.requested_bytes = after(text, "Tried to allocate ");
        let gpu = text.find("GPU ").and_then(|at| number(&text[at + 4..]));
        self.device = gpu.map(|(device, _)| device);
        self.suggests_expandable = text.contains("expandable_segments");
        // Up to PyTorch 2.0: `(GPU 0; 12.00 GiB total capacity; 9.54 GiB already allocated; 0 bytes free; …)`.
        self.capacity_bytes = before(text, " total capacity")
            .or_else(|| after(text, "total capacity of "))
            .or_else(|| after(text, "total capacty of "));
        self.free_bytes =
            before(text, " free;").or_else(|| before(text, " is free")).or_else(|| before(text, " free)"));
        self.limit_bytes = before(text, " allowed");
        self.private_bytes = before(text, " allocated in private pools");
        self.process_bytes = after(text, "this process has ");
        self.allocated_bytes =
            before(text, " already allocated").or_else(|| before(text, " is allocated by PyTorch"));
        // Up to PyTorch 1.3, "cached" means reserved memory without tensors, like "unallocated" since 2.1.
        let unallocated = before(text, " is reserved by PyTorch but unallocated")
            .or_else(|| before(text, " cached)"))
            .or_else(|| before(text, " cached;"));
        let cached = self.allocated_bytes.zip(unallocated).map(|(allocated, cached)| allocated + cached);
        self.reserved_bytes = before(text, " reserved in total by PyTorch").or(cached);
        let processes = text.match_indices("Process ").filter_map(|(at, word)| {
            let (process, rest) = number(&text[at + word.len()..])?;
            Some((process, leading(rest.strip_prefix(" has ")?)?.0))
        });
        self.others = processes.collect();
    }

    /// With `backend:cudaMallocAsync`, several lines: `Currently allocated     : 9.52 GiB`, `Requested               : 2.00 GiB`,
    /// `Device limit            : 10.00 GiB` and so on.
    fn pool(&mut self, text: &str) {
        self.device = number(text[OF_A_POOL.len()..].trim_start()).map(|(device, _)| device);
        self.allocated_bytes = after(text, "Currently allocated : ");
        self.requested_bytes = after(text, "Requested : ");
        self.capacity_bytes = after(text, "Device limit : ");
        self.free_bytes = after(text, "Free (according to CUDA): ");
        // If there is no limit, the message contains the largest possible number.
        self.limit_bytes = after(text, "memory fraction) : ").filter(|limit| *limit < NO_LIMIT);
    }

    /// `MPS allocated: 5.00 GB, other allocations: 1.00 GB, max allowed: 9.07 GB). Tried to allocate 256.00 MB`.
    fn metal(&mut self, text: &str) {
        self.requested_bytes = after(text, "Tried to allocate ");
        self.allocated_bytes = after(text, "MPS allocated: ");
        self.limit_bytes = after(text, "max allowed: ");
        self.process_bytes =
            self.allocated_bytes.zip(after(text, "other allocations: ")).map(|(own, other)| own + other);
    }

    /// Whether this message has no more information than an earlier message. If so, it is a copy by a logger or
    /// launcher, perhaps shortened.
    pub(super) fn repeats(&self, earlier: &OutOfMemory) -> bool {
        let figures = |it: &OutOfMemory| {
            [
                it.requested_bytes,
                it.capacity_bytes,
                it.free_bytes,
                it.allocated_bytes,
                it.private_bytes,
                it.reserved_bytes,
                it.limit_bytes,
                it.process_bytes,
            ]
        };
        let is_of_it = self.device.is_none() || self.device == earlier.device;
        let mut pairs = figures(self).into_iter().zip(figures(earlier));
        self.source == earlier.source
            && self.name == earlier.name
            && is_of_it
            && pairs.all(|(own, earlier)| own.is_none() || own == earlier)
    }

    /// Reserved memory without tensors.
    pub fn cached_bytes(&self) -> Option<u64> {
        self.reserved_bytes
            .zip(self.allocated_bytes)
            .map(|(reserved, allocated)| reserved.saturating_sub(allocated))
    }

    /// Memory that is used on the GPU outside PyTorch's allocator: by other processes, the CUDA context and libraries.
    pub fn outside_bytes(&self) -> Option<u64> {
        let (capacity, free, reserved) = (self.capacity_bytes?, self.free_bytes?, self.reserved_bytes?);
        Some(capacity.saturating_sub(free).saturating_sub(reserved))
    }
}

/// The beginning of a message from `backend:cudaMallocAsync`.
const OF_A_POOL: &str = "Allocation on device";

/// A limit of this many bytes means no limit.
const NO_LIMIT: u64 = 1 << 50;

/// The beginnings of messages; the first entry that a line contains counts.
const STARTS: [(&str, Source, &str); 19] = [
    (OF_A_POOL, Source::Allocator, "CUDA"),
    ("CUDA out of memory.", Source::Allocator, "CUDA"),
    ("HIP out of memory.", Source::Allocator, "HIP"),
    ("XPU out of memory.", Source::Allocator, "XPU"),
    ("MPS backend out of memory", Source::Metal, "MPS"),
    ("DefaultCPUAllocator: can't allocate memory", Source::Cpu, "CPU"),
    ("DefaultCPUAllocator: not enough memory", Source::Cpu, "CPU"),
    ("CUBLAS_STATUS_ALLOC_FAILED", Source::Driver, "cuBLAS (CUBLAS_STATUS_ALLOC_FAILED)"),
    ("CUSOLVER_STATUS_ALLOC_FAILED", Source::Driver, "cuSOLVER (CUSOLVER_STATUS_ALLOC_FAILED)"),
    ("CUSPARSE_STATUS_ALLOC_FAILED", Source::Driver, "cuSPARSE (CUSPARSE_STATUS_ALLOC_FAILED)"),
    ("CUDNN_STATUS_ALLOC_FAILED", Source::Driver, "cuDNN (CUDNN_STATUS_ALLOC_FAILED)"),
    ("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", Source::Driver, "cuDNN"),
    ("CUFFT_ALLOC_FAILED", Source::Driver, "cuFFT (CUFFT_ALLOC_FAILED)"),
    ("rocblas_status_memory_error", Source::Driver, "rocBLAS (rocblas_status_memory_error)"),
    ("Cuda failure 'out of memory'", Source::Driver, "NCCL"),
    ("Cuda failure 2 'out of memory'", Source::Driver, "NCCL"),
    ("CUDA driver error: out of memory", Source::Driver, "the CUDA driver"),
    ("CUDA error: out of memory", Source::Driver, "the CUDA driver"),
    ("HIP error: out of memory", Source::Driver, "the HIP driver"),
];

/// The size after these words.
fn after(text: &str, words: &str) -> Option<u64> {
    leading(&text[text.find(words)? + words.len()..]).map(|(bytes, _)| bytes)
}

/// The size before these words.
fn before(text: &str, words: &str) -> Option<u64> {
    let ahead = &text[..text.find(words)?];
    // A size is two words: a number and a unit.
    let (rest, unit) = ahead.rsplit_once(' ')?;
    let number = last_number(rest);
    // `22. 00 GiB`: a line break within the number became a space.
    let whole = rest[..rest.len() - number.len()].strip_suffix(". ").map_or("", last_number);
    let point = if whole.is_empty() { "" } else { "." };
    leading(&format!("{whole}{point}{number} {unit}")).map(|(bytes, _)| bytes)
}

/// The digits at the end of a text, which may include a point or commas.
fn last_number(text: &str) -> &str {
    let is_part = |char: char| char.is_ascii_digit() || char == '.' || char == ',';
    text[text.trim_end_matches(is_part).len()..].trim_start_matches(',')
}
