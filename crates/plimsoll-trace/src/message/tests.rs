//! Tests of each wording that PyTorch has used since 1.0, in the places where users find them: logs of
//! trainers and launchers, and notebooks.

use super::*;
use crate::failure::Cause;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn log(text: &str) -> Log {
    match read(text.as_bytes()).unwrap() {
        Some(Pasted::Log(log)) => log,
        other => panic!("{text}: {other:?}"),
    }
}

/// The only message of a text.
fn one(text: &str) -> OutOfMemory {
    let log = log(text);
    assert_eq!(log.failed.len(), 1, "{log:?}");
    log.failed[0].message.clone()
}

/// A size with two decimals, as rounded in a message.
fn gib(size: f64) -> Option<u64> {
    Some((size * GIB as f64).round() as u64)
}

fn mib(size: f64) -> Option<u64> {
    Some((size * MIB as f64).round() as u64)
}

#[test]
fn pytorch_1_0_to_1_3_call_the_unused_cache_cached() {
    let found = one(
        "RuntimeError: CUDA out of memory. Tried to allocate 1.17 GiB (GPU 1; 23.65 GiB total capacity; 16.22 GiB already \
        allocated; 1.04 GiB free; 5.17 GiB cached)",
    );
    assert_eq!((found.device, found.allocated_bytes), (Some(1), gib(16.22)));
    assert_eq!(found.cached_bytes(), gib(5.17));
    let Cause::Fragmentation { spare_bytes } = found.shortage().cause else {
        panic!("{:?}", found.shortage())
    };
    assert!(spare_bytes.abs_diff(gib(1.04 + 5.17 - 1.17).unwrap()) <= 2, "{spare_bytes}");
}

#[test]
fn pytorch_1_10_to_2_0() {
    let found = one(
        "RuntimeError: CUDA out of memory. Tried to allocate 256.00 MiB (GPU 1; 12.00 GiB total capacity; \
        9.54 GiB already allocated; 0 bytes free; 9.71 GiB reserved in total by PyTorch) If reserved memory is >> \
        allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory \
        Management and PYTORCH_CUDA_ALLOC_CONF",
    );
    assert_eq!((found.source, found.name.as_str(), found.device), (Source::Allocator, "CUDA", Some(1)));
    assert_eq!((found.requested_bytes, found.capacity_bytes), (Some(256 * MIB), Some(12 * GIB)));
    assert_eq!(
        (found.allocated_bytes, found.free_bytes, found.reserved_bytes),
        (gib(9.54), Some(0), gib(9.71))
    );
    assert_eq!((found.limit_bytes, found.process_bytes, found.others.len()), (None, None, 0));
    let shortage = found.shortage();
    let short = 256 * MIB - (gib(9.71).unwrap() - gib(9.54).unwrap());
    assert_eq!((shortage.cause, shortage.held_by_others), (Cause::Capacity { short_bytes: short }, false));
    assert_eq!(found.outside_bytes(), Some(12 * GIB - gib(9.71).unwrap()));
}

#[test]
fn pytorch_1_10_with_a_limit_of_the_process() {
    let found = one(
        "RuntimeError: CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; 24.00 GiB total capacity; 4.50 GiB \
        already allocated; 18.00 GiB free; 5.00 GiB allowed; 4.60 GiB reserved in total by PyTorch)",
    );
    assert_eq!((found.limit_bytes, found.free_bytes), (Some(5 * GIB), Some(18 * GIB)));
    assert_eq!(found.shortage().cause, Cause::Limit { short_bytes: GIB / 2 });
}

#[test]
fn pytorch_2_1_misspells_capacity_and_counts_processes() {
    let found = one(
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacty of \
        23.69 GiB of which 12.81 MiB is free. Process 123 has 10.00 GiB memory in use. Including non-PyTorch memory, this \
        process has 13.60 GiB memory in use. Of the allocated memory 13.20 GiB is allocated by PyTorch, and 2.50 MiB is \
        reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to \
        avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
    );
    assert_eq!((found.capacity_bytes, found.free_bytes), (gib(23.69), mib(12.81)));
    assert_eq!((found.process_bytes, found.allocated_bytes), (gib(13.6), gib(13.2)));
    assert_eq!(found.others, [(123, 10 * GIB)]);
    assert_eq!(found.cached_bytes(), mib(2.5));
    assert_eq!(found.true_others(), found.others);
    let shortage = found.shortage();
    let short = 20 * MIB - mib(12.81).unwrap() - mib(2.5).unwrap();
    assert_eq!((shortage.cause, shortage.held_by_others), (Cause::Capacity { short_bytes: short }, true));
    assert_eq!(shortage.free_bytes, Some(20 * MIB - short));
}

#[test]
fn pytorch_2_2_and_later() {
    let found = one(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 36.00 MiB. GPU 0 has a total capacity of 39.56 \
        GiB of which 2.81 MiB is free. Process 16368 has 39.55 GiB memory in use. Of the allocated memory 38.05 GiB is \
        allocated by PyTorch, and 1021.72 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is \
        large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for \
        Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
    );
    assert!(found.suggests_expandable);
    let spare = mib(2.81).unwrap() + mib(1021.72).unwrap() - 36 * MIB;
    let Cause::Fragmentation { spare_bytes } = found.shortage().cause else {
        panic!("{:?}", found.shortage())
    };
    assert!(spare_bytes.abs_diff(spare) <= 1, "{spare_bytes}");
    // In a container, the process that the message names is this process.
    assert!(found.true_others().is_empty(), "{found:?}");
}

#[test]
fn pytorch_2_with_a_limit_and_private_pools() {
    let found = one(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.25 GiB of \
        which 60.00 GiB is free. Including non-PyTorch memory, this process has 19.25 GiB memory in use. 19.00 GiB allowed; Of \
        the allocated memory 18.00 GiB is allocated by PyTorch, with 512.00 MiB allocated in private pools (e.g., CUDA Graphs), \
        and 300.00 MiB is reserved by PyTorch but unallocated.",
    );
    assert_eq!(
        (found.device, found.limit_bytes, found.private_bytes),
        (Some(3), Some(19 * GIB), Some(512 * MIB))
    );
    assert_eq!((found.allocated_bytes, found.process_bytes), (Some(18 * GIB), gib(19.25)));
    assert_eq!(found.shortage().cause, Cause::Limit { short_bytes: GIB });
}

#[test]
fn the_pool_of_cuda_malloc_async() {
    let text = "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\n\
                Currently allocated     : 9.52 GiB\nRequested               : 2.00 GiB\nDevice limit            : 10.00 GiB\n\
                Free (according to CUDA): 12.00 MiB\nPyTorch limit (set by user-supplied memory fraction)\n                        : ";
    let found = one(&format!("{text}17179869184.00 GiB"));
    assert_eq!((found.name.as_str(), found.device), ("CUDA", Some(0)));
    assert_eq!(
        (found.allocated_bytes, found.requested_bytes, found.capacity_bytes, found.free_bytes),
        (gib(9.52), Some(2 * GIB), Some(10 * GIB), Some(12 * MIB))
    );
    assert_eq!((found.reserved_bytes, found.limit_bytes), (None, None));
    // The pool may contain free memory: at most what is not allocated.
    let left = 10 * GIB - gib(9.52).unwrap();
    assert_eq!(found.shortage().cause, Cause::Capacity { short_bytes: 2 * GIB - left });
    let limited = one(&format!("{text}10.00 GiB").replace("10.00 GiB\nFree", "24.00 GiB\nFree"));
    assert_eq!(limited.limit_bytes, Some(10 * GIB));
    assert_eq!(limited.shortage().cause, Cause::Limit { short_bytes: 2 * GIB - left });
    // Other processes may be using the rest of the GPU, or the pool may be fragmented.
    let unsure = one(&format!("{text}17179869184.00 GiB").replace("9.52", "5.00"));
    assert_eq!(unsure.shortage().cause, Cause::Unknown);
    // ComfyUI prints only the first words.
    assert_eq!(one("torch.OutOfMemoryError: Allocation on device").shortage().cause, Cause::Unknown);
}

#[test]
fn hip_and_xpu() {
    let hip = one(
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 63.98 GiB of which \
        1.00 GiB is free. Of the allocated memory 60.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but \
        unallocated. If reserved but unallocated memory is large try setting PYTORCH_HIP_ALLOC_CONF=expandable_segments:True",
    );
    assert_eq!(
        (hip.name.as_str(), hip.shortage().cause),
        ("HIP", Cause::Capacity { short_bytes: 412 * MIB })
    );
    let xpu = one(
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 15.91 GiB. Of the \
        allocated memory 12.00 GiB is allocated by PyTorch, and 500.00 MiB is reserved by PyTorch but unallocated. Please use \
        `empty_cache` to release all unoccupied cached memory.",
    );
    assert_eq!((xpu.name.as_str(), xpu.capacity_bytes, xpu.free_bytes), ("XPU", gib(15.91), None));
    assert_eq!((xpu.shortage().cause, xpu.outside_bytes()), (Cause::Unknown, None));
}

#[test]
fn metal_has_a_limit() {
    let found = one(
        "RuntimeError: MPS backend out of memory (MPS allocated: 5.00 GB, other allocations: 1.00 GB, max allowed: 9.07 GB). \
        Tried to allocate 4.00 GB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory \
        allocations (may cause system failure).",
    );
    assert_eq!(
        (found.source, found.requested_bytes, found.process_bytes),
        (Source::Metal, Some(4 * GIB), Some(6 * GIB))
    );
    assert_eq!(found.shortage().cause, Cause::Limit { short_bytes: 10 * GIB - gib(9.07).unwrap() });
}

#[test]
fn the_cpus_memory() {
    for text in [
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate \
         4000000000 bytes. Error code 12 (Cannot allocate memory)",
        "RuntimeError: [enforce fail at C:\\cb\\pytorch_1000000000000\\work\\c10\\core\\impl\\alloc_cpu.cpp:72] data. \
         DefaultCPUAllocator: not enough memory: you tried to allocate 4000000000 bytes.",
    ] {
        let found = one(text);
        assert_eq!((found.source, found.requested_bytes), (Source::Cpu, Some(4_000_000_000)));
        assert_eq!(found.shortage().cause, Cause::Unknown);
    }
}

#[test]
fn libraries_and_the_driver_say_no_figures() {
    for (text, name) in [
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "cuBLAS",
        ),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "cuDNN"),
        (
            "torch.AcceleratorError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
            "the CUDA driver",
        ),
        ("RuntimeError: CUDA driver error: out of memory", "the CUDA driver"),
        (
            "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
            "NCCL",
        ),
        ("RuntimeError: HIP error: out of memory", "the HIP driver"),
    ] {
        let found = one(text);
        assert!(found.name.starts_with(name) && found.source == Source::Driver, "{found:?}");
        assert_eq!((found.requested_bytes, found.shortage().cause), (None, Cause::Unknown));
    }
}

#[test]
fn a_traceback_before_the_message_names_the_users_line() {
    let found = log(
        "Traceback (most recent call last):\n  File \"/home/user/train.py\", line 88, in <module>\n    main()\n  File \
        \"/home/user/net.py\", line 12, in forward\n    x = self.up(x)\n  File \"/opt/conda/lib/python3.10/site-packages/torch/nn/\
        modules/module.py\", line 1501, in _call_impl\n    return forward_call(*args, **kwargs)\nRuntimeError: CUDA out of memory. \
        Tried to allocate 1.00 GiB (GPU 0; 8.00 GiB total capacity; 6.00 GiB already allocated; 512.00 MiB free; 7.00 GiB reserved in \
        total by PyTorch)",
    );
    let traceback = &found.failed[0].traceback;
    let place = traceback.place().unwrap();
    assert_eq!(
        (place.file.as_str(), place.line, place.source.as_str()),
        ("/home/user/net.py", 12, "x = self.up(x)")
    );
    assert_eq!((traceback.program(), traceback.frames.len()), (Some("/home/user/train.py"), 3));
    assert_eq!(found.failed[0].message.shortage().cause, Cause::Fragmentation { spare_bytes: 512 * MIB });
}

#[test]
fn the_ranks_of_a_launcher_keep_their_tracebacks_apart() {
    let rank = |rank: u32, line: u32| {
        format!(
            "[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File \"/a/t.py\", line {line}, in <module>\n[rank{rank}]:     \
             step({rank})\n[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}.00 GiB. GPU {rank} has a total \
             capacity of 79.25 GiB of which 1.00 GiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 1.00 GiB is \
             reserved by PyTorch but unallocated.",
            rank + 3
        )
    };
    let (a, b) = (rank(0, 5), rank(1, 9));
    // Interleaved line by line.
    let text: Vec<String> =
        a.lines().zip(b.lines()).flat_map(|(a, b)| [a.to_owned(), b.to_owned()]).collect();
    let found = log(&text.join("\n"));
    let rows: Vec<_> =
        found.failed.iter().map(|it| (it.rank, it.message.device, it.traceback.frames[0].line)).collect();
    assert_eq!(rows, [(Some(0), Some(0), 5), (Some(1), Some(1), 9)]);
    assert_eq!(found.failed[1].traceback.frames[0].source, "step(1)");
}

#[test]
fn a_message_is_found_in_colours_progress_bars_json_and_broken_lines() {
    let plain = "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity; 9.60 GiB already allocated; 19.56 MiB \
        free; 9.69 GiB reserved in total by PyTorch)";
    let expected = one(plain);
    let broken =
        plain.replace("20.00 MiB", "20.00\nMiB").replace("already allocated;", "already\n    allocated;");
    for text in [
        format!(
            "Epoch 1:  10%|#   | 10/100\rEpoch 1:  11%|#   | 11/100\r\x1b[31mRuntimeError: {plain}\x1b[0m\n"
        ),
        format!("{{\"level\": \"error\", \"msg\": \"RuntimeError: {plain}\\n\"}}\n"),
        format!("2024-03-01 12:00:01,123 [ERROR] trainer: {plain}\nnext line"),
        format!("> {broken}\n\nafter"),
        format!("[default0]:RuntimeError: {plain}"),
        format!("train.py: 12%|...\nOutOfMemoryError('{plain}')"),
    ] {
        assert_eq!(one(&text), expected, "{text}");
    }
}

#[test]
fn a_message_that_was_cut_at_any_column_is_whole() {
    let plain = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.00 GiB. GPU 0 has a total capacity of 79.25 GiB of \
        which 1.50 GiB is free. Process 16368 has 10.00 GiB memory in use. Including non-PyTorch memory, this process has 67.75 GiB \
        memory in use. Of the allocated memory 62.00 GiB is allocated by PyTorch, with 512.00 MiB allocated in private pools (e.g., \
        CUDA Graphs), and 5.25 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting \
        PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.";
    let older = "RuntimeError: CUDA out of memory. Tried to allocate 256.00 MiB (GPU 1; 12.00 GiB total capacity; 9.54 GiB already \
        allocated; 18.00 GiB free; 15.00 GiB allowed; 9.71 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory \
        try setting max_split_size_mb to avoid fragmentation.";
    for text in [plain, older] {
        let expected = one(text);
        for width in 60..=130 {
            let bytes: Vec<&str> =
                text.as_bytes().chunks(width).map(|it| std::str::from_utf8(it).unwrap()).collect();
            for cut in [bytes.join("\n"), bytes.join("   \n  ")] {
                assert_eq!(one(&cut), expected, "{width}: {cut}");
            }
        }
    }
    // A web form may have changed the line break to a space.
    assert_eq!(one(&plain.replace("62.00 GiB is", "62. 00 GiB is")), one(plain));
    // Also at the beginning of a message.
    let expected = one(plain);
    for at in "torch.OutOfMemoryError: CUDA".len()..="torch.OutOfMemoryError: CUDA out of memory".len() {
        let (ahead, rest) = plain.split_at(at);
        assert_eq!(one(&format!("{ahead}\n{rest}")), expected, "{ahead}");
    }
}

#[test]
fn of_several_messages_of_a_process_the_last_ended_it() {
    let failed = |line: u32, mib: u32, gpu: u32| {
        format!(
            "Traceback (most recent call last):\n  File \"/a/t.py\", line {line}, in <module>\n    step()\nRuntimeError: CUDA out of \
             memory. Tried to allocate {mib}.00 MiB (GPU {gpu}; 8.00 GiB total capacity; 6.00 GiB already allocated; 0 bytes free; \
             6.50 GiB reserved in total by PyTorch)\n"
        )
    };
    let first = failed(5, 900, 0);
    // A message without figures, or a repeated message, does not count.
    for end in ["", "CUDA out of memory.\n", "worker: CUDA out of memory. Tried to allocate 700.00 MiB.\n"] {
        let found = log(&format!("{first}retrying with half the batch\nstep 1\n{}{end}", failed(9, 700, 0)));
        let [process] = found.processes().try_into().unwrap_or_else(|_| panic!("{found:?}"));
        assert_eq!(process.failed.len(), 2, "{found:?}");
        let last = process.last().unwrap();
        assert_eq!((last.message.requested_bytes, last.traceback.frames[0].line), (mib(700.0), 9));
    }
    // The driver's message does not name the GPU.
    let found = log(&format!(
        "{first}Traceback (most recent call last):\n  File \"b.py\", line 3, in f\nRuntimeError: CUDA error: out of memory\n"
    ));
    assert_eq!(found.process().unwrap().last().unwrap().message.source, Source::Driver);
    // With two processes, the result is for the first.
    let found = log(&format!("{first}{}{}", failed(7, 800, 1), failed(9, 700, 0)));
    let rows: Vec<_> =
        found.processes().iter().map(|it| it.last().unwrap().message.requested_bytes).collect();
    assert_eq!(rows, [mib(700.0), mib(800.0)]);
    assert_eq!(found.process().unwrap().last().unwrap().traceback.frames[0].line, 9);
}

#[test]
fn the_last_message_counts_in_a_text_with_very_many() {
    let lines: Vec<String> =
        (1..=300).map(|size| format!("CUDA out of memory. Tried to allocate {size}.00 MiB.\n\n")).collect();
    let found = log(&lines.concat());
    assert_eq!((found.failed.len(), found.left_out), (256, 44));
    assert_eq!(found.process().unwrap().last().unwrap().message.requested_bytes, mib(300.0));
}

#[test]
fn ipython_and_a_message_above_its_traceback() {
    let found = log(
        "OutOfMemoryError                          Traceback (most recent call last)\nCell In[3], line 5\n      3 x = 1\n----> 5 y = \
        net(x)\n\nFile ~/net.py:12, in Net.forward(self, x)\n     12 return self.a(x)\n\nOutOfMemoryError: CUDA out of memory. Tried to \
        allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 0 bytes is free.",
    );
    let frames: Vec<_> =
        found.failed[0].traceback.frames.iter().map(|it| (it.file.as_str(), it.line)).collect();
    assert_eq!(frames, [("Cell In[3]", 5), ("~/net.py", 12)]);
    let found = log(
        "CUDA out of memory. Tried to allocate 1.00 GiB.\n\nTraceback (most recent call last):\n  File \"a.py\", line 3, in f\n",
    );
    assert_eq!(found.failed[0].traceback.place().map(|it| it.line), Some(3));
}

#[test]
fn counters_are_read_as_json_as_python_prints_them_and_as_a_table() {
    let expected = Counters {
        allocated: Counter { current_bytes: Some(5), peak_bytes: Some(7) },
        reserved: Counter { current_bytes: Some(8), peak_bytes: Some(9) },
        failures: Some(1),
        retries: Some(2),
        ..Counters::default()
    };
    for text in [
        r#"{"allocated_bytes.all.current": 5, "allocated_bytes.all.peak": 7, "reserved_bytes.all.current": 8,
            "reserved_bytes.all.peak": 9, "num_ooms": 1, "num_alloc_retries": 2}"#,
        "{'allocated_bytes.all.current': 5, 'allocated_bytes.all.peak': 7, 'reserved_bytes.all.current': 8, \
            'reserved_bytes.all.peak': 9, 'num_ooms': 1, 'num_alloc_retries': 2}",
        "OrderedDict([('allocated_bytes.all.current', 5), ('allocated_bytes.all.peak', 7), ('num_alloc_retries', 2), ('num_ooms', 1), \
            ('reserved_bytes.all.current', 8), ('reserved_bytes.all.peak', 9)])",
        "OrderedDict({'allocated_bytes.all.current': 5, 'allocated_bytes.all.peak': 7, 'num_alloc_retries': 2, 'num_ooms': 1, \
            'reserved_bytes.all.current': 8, 'reserved_bytes.all.peak': 9})",
        r#"{"stats": {"allocated_bytes": {"all": {"current": 5, "peak": 7}}, "reserved_bytes": {"all": {"current": 8, "peak": 9}},
            "num_ooms": 1, "num_alloc_retries": 2}}"#,
    ] {
        assert_eq!(read(text.as_bytes()).unwrap(), Some(Pasted::Counters(expected)), "{text}");
    }
    let table = "\
|===========================================================================|
|                  PyTorch CUDA memory summary, device ID 2                 |
|---------------------------------------------------------------------------|
|            CUDA OOMs: 1            |        cudaMalloc retries: 2         |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Allocated memory      |   9862 MiB |  10010 MiB | 123456 MiB | 113594 MiB |
|       from large pool |   9800 MiB |   9900 MiB | 123000 MiB | 113200 MiB |
| Active memory         |   9862 MiB |  10010 MiB | 123456 MiB | 113594 MiB |
| GPU reserved memory   |  10240 MiB |  10240 MiB |  10240 MiB |      0 B   |
| Non-releasable memory | 387072 KiB |    378 MiB |    900 MiB |    522 MiB |
|===========================================================================|";
    let Some(Pasted::Counters(found)) = read(table.as_bytes()).unwrap() else { panic!("counters") };
    assert_eq!((found.device, found.failures, found.retries), (Some(2), Some(1), Some(2)));
    assert_eq!(found.allocated, Counter { current_bytes: Some(9862 * MIB), peak_bytes: Some(10010 * MIB) });
    assert_eq!(
        found.inactive_split,
        Counter { current_bytes: Some(387_072 * KIB), peak_bytes: Some(378 * MIB) }
    );
    // A launcher's prefix before each line, and Python's `repr`.
    let prefixed = format!("[rank1]: {}", table.replace('\n', "\n[rank1]: "));
    for text in [prefixed, format!("'{}'", table.replace('\n', "\\n"))] {
        let Some(Pasted::Counters(other)) = read(text.as_bytes()).unwrap() else {
            panic!("counters: {text}")
        };
        assert_eq!(other, found, "{text}");
    }
}

#[test]
fn memory_events_of_a_profile_are_counted_by_device() {
    let trace = r#"{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB", "totalGlobalMem": 42297786368}],
        "traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 1, "dur": 9},
        {"ph": "i", "name": "[memory]", "args": {"Total Reserved": 200, "Total Allocated": 100, "Bytes": 100, "Device Id": 0, "Device Type": 1}},
        {"ph": "i", "name": "[memory]", "args": {"Total Reserved": 200, "Total Allocated": 40, "Bytes": -60, "Device Id": 0, "Device Type": 1}},
        {"ph": "i", "name": "[memory]", "args": {"Total Allocated": 7, "Bytes": 7, "Device Id": -1, "Device Type": 0}},
        {"ph": "i", "name": "[OutOfMemory]", "args": {"Total Reserved": 200, "Total Allocated": 40, "Bytes": 500, "Device Id": 0, "Device Type": 1}}]}"#;
    let Some(Pasted::Profile(found)) = read(trace.as_bytes()).unwrap() else { panic!("a profile") };
    let device = &found.devices[&0];
    assert_eq!(
        (device.peak_allocated_bytes, device.peak_reserved_bytes, device.last_allocated_bytes),
        (100, 200, 40)
    );
    assert_eq!((device.events, device.largest_bytes, device.failed), (3, 100, Some((500, 1))));
    assert_eq!((found.steps, device.capacity_bytes, found.devices.len()), (1, Some(42_297_786_368), 1));
}

#[test]
fn what_has_no_message_is_nothing() {
    for text in [
        "",
        "a poem",
        "{\"a\": 1}",
        "[1, 2]",
        "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nValueError: x",
    ] {
        assert_eq!(read(text.as_bytes()).unwrap(), None, "{text}");
    }
    let absent = |text: &str| understood(text.as_bytes()).unwrap().unwrap_err();
    assert_eq!(absent("Epoch 1 loss 0.3\nKilled"), Absent::Killed);
    assert_eq!(absent("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes."), Absent::Jax);
    assert_eq!(absent("Epoch 1 loss 0.3"), Absent::Nothing);
}

#[test]
fn prose_is_utf_8_utf_16_or_latin_1_and_neither_json_nor_bytes() {
    let wide: Vec<u8> = "\u{feff}Größe\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for text in [
        "Größe\n".as_bytes(),
        b"Gr\xf6\xdfe\n",
        &wide,
        b"[rank0]: x",
        b"\x1b[31m5 %\x1b[0m\r",
        b"[2024-01-01] x",
    ] {
        assert!(is_prose(text), "{text:?}");
    }
    for other in [&b"{\"a\": 1}"[..], b" [{", b"[]", b"ab\x01", b"PK\x03\x04"] {
        assert!(!is_prose(other), "{other:?}");
    }
}
