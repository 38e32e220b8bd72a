//! Advice after an out-of-memory message, and the next commands.

use plimsoll_trace::explain::{Cause, OWN_CONTEXT_BYTES};
use plimsoll_trace::message::{OutOfMemory, Shortage, Source};

use super::next::{self, Vendor};
use crate::shown::Shown;

/// Suggestions that would help, the most useful first.
pub(super) fn help(message: &OutOfMemory, shortage: Shortage, shown: Shown) -> Vec<String> {
    let mut help = Vec::new();
    match (message.source, shortage.cause) {
        (_, Cause::Capacity { .. }) if shortage.held_by_others => help.extend(others(message, shown)),
        (_, Cause::Capacity { short_bytes }) => {
            let is_held = is_held(message, Some(short_bytes));
            let has = if is_held && is_held_much(message) { "was left on the GPU" } else { "the GPU has" };
            help.push(format!(
                "the program needs more than {has}; allocator settings and empty_cache() cannot help. This is the shortage of one request; the program needs more in total"
            ));
            if is_held {
                help.extend(others(message, shown));
            }
        }
        (Source::Allocator, Cause::Fragmentation { .. }) => {
            help.push(format!(
                "set {}=expandable_segments:True: the allocator then needs no contiguous memory (PyTorch 2.1 or newer, not on Windows)",
                next::settings(message)
            ));
            // Memory that other processes release can serve the request.
            if is_held(message, message.requested_bytes) {
                help.extend(others(message, shown));
            }
        }
        (Source::Metal, Cause::Limit { .. }) => {
            help.push("use a smaller batch; PYTORCH_MPS_HIGH_WATERMARK_RATIO raises the limit".to_owned());
        }
        (_, Cause::Limit { .. }) => match shortage.device_short_bytes {
            None => help.push(
                "torch.cuda.set_per_process_memory_fraction set the limit: raise it, or use less memory".to_owned(),
            ),
            Some(short) => {
                help.push(format!(
                    "use less memory; raising the limit (torch.cuda.set_per_process_memory_fraction) alone cannot help: the \
                     GPU is also short by about {}",
                    shown.size(short)
                ));
                help.extend(others(message, shown));
            }
        },
        (Source::Driver, _) => help.push(
            "the message does not say who uses the memory. It may be another process, especially if the program failed at startup: end it, or use another GPU. Or PyTorch's allocator has taken the rest: use a smaller batch, or leave \
             room with torch.cuda.set_per_process_memory_fraction(0.9)"
                .to_owned(),
        ),
        (Source::Cpu, _) => {
            help.push("load data in smaller pieces, use fewer workers, or map files instead of reading them".to_owned());
        }
        _ => {}
    }
    if let (Cause::Capacity { .. }, Some(short)) = (shortage.cause, shortage.limit_short_bytes) {
        help.push(format!(
            "more free memory on the GPU alone cannot help: the limit (torch.cuda.set_per_process_memory_fraction) \
             is also short by about {}",
            shown.size(short)
        ));
    }
    help
}

/// Whether, as far as the message shows, at least `needed_bytes` are used outside this process.
fn is_held(message: &OutOfMemory, needed_bytes: Option<u64>) -> bool {
    let held = message.elsewhere_bytes().or(message.outside_bytes());
    held.zip(needed_bytes).is_some_and(|(held, needed)| held >= needed)
}

/// Whether more memory is used outside this process than the driver and a CUDA context need.
fn is_held_much(message: &OutOfMemory) -> bool {
    is_held(message, Some(OWN_CONTEXT_BYTES))
}

/// Advice about the memory that other processes use, if they use a lot.
fn others(message: &OutOfMemory, shown: Shown) -> Vec<String> {
    let list = |all: &[(u32, u64)]| {
        let rows: Vec<String> =
            all.iter().map(|(pid, bytes)| format!("{pid} ({})", shown.size(*bytes))).collect();
        rows.join(", ")
    };
    let is_much = |all: &[(u32, u64)]| all.iter().map(|(_, bytes)| bytes).sum::<u64>() > OWN_CONTEXT_BYTES;
    let (named, perhaps_own) = (message.true_others(), message.perhaps_own());
    let mut help = Vec::new();
    if !perhaps_own.is_empty() {
        let which = if perhaps_own.len() == 1 {
            format!("process {} may be this program itself", list(&perhaps_own))
        } else {
            format!("one of the processes {} may be this program itself", list(&perhaps_own))
        };
        help.push(format!(
            "{which}: in a container, the message cannot tell. Look with {} outside the container before you end a process, or \
             use another GPU",
            processes(message)
        ));
    }
    if is_much(&named) || !named.is_empty() && message.shortage().held_by_others {
        help.push(format!("end the other processes on this GPU, or use another GPU: {}", list(&named)));
    } else if let Some(bytes) = message.elsewhere_bytes().filter(|bytes| *bytes > OWN_CONTEXT_BYTES) {
        help.push(format!(
            "{} is held outside this process: by other processes ({} lists them), or a display",
            shown.size(bytes),
            processes(message)
        ));
    } else if message.others.is_empty()
        && message.process_bytes.is_none()
        && let Some(bytes) = message.outside_bytes().filter(|bytes| *bytes > OWN_CONTEXT_BYTES)
    {
        help.push(format!(
            "{} is used outside PyTorch's allocator, more than a CUDA context takes: other processes ({} lists them), or a display",
            shown.size(bytes),
            processes(message)
        ));
    }
    help
}

/// The next commands, the most useful first.
pub(super) fn commands(message: &OutOfMemory, shortage: Shortage, program: &str) -> Vec<String> {
    let (plan, run) = (next::plan(message.capacity_bytes, program), next::run(program));
    let expandable = || format!("{}=expandable_segments:True {program}", next::settings(message));
    match (message.source, shortage.cause) {
        (Source::Cpu | Source::Metal, _) => Vec::new(),
        // `plan` and `run` support only NVIDIA's GPUs; `explain` reads snapshots of all GPUs.
        _ if !next::is_nvidias(message) => {
            let of_others =
                (shortage.held_by_others || message.source == Source::Driver).then(|| processes(message));
            let expandable = matches!(shortage.cause, Cause::Fragmentation { .. }).then(expandable);
            of_others.into_iter().chain(expandable).chain(["plimsoll record".to_owned()]).collect()
        }
        (_, Cause::Fragmentation { .. }) => vec![expandable(), run, plan],
        (_, Cause::Capacity { .. }) if shortage.held_by_others => vec![processes(message), plan],
        (Source::Driver, _) => vec![processes(message), run, plan],
        _ => vec![plan, run],
    }
}

/// The command that lists the processes on a GPU.
fn processes(message: &OutOfMemory) -> String {
    match next::vendor(message) {
        Vendor::Amd => "rocm-smi --showpids",
        Vendor::Intel => "xpu-smi ps",
        Vendor::Nvidia => "nvidia-smi",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use plimsoll_trace::message::{Log, Pasted, read};

    use super::*;

    /// A 24 GiB GPU: the memory of its processes, and the reserved memory that is not allocated to
    /// tensors.
    fn answer(processes: &str, free: &str, unallocated: &str) -> Vec<String> {
        let text = format!(
            "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 24.00 GiB of which {free} is free. {processes}Of the \
             allocated memory 30.00 MiB is allocated by PyTorch, and {unallocated} is reserved by PyTorch but unallocated."
        );
        let Some(Pasted::Log(Log { failed, .. })) = read(text.as_bytes()).expect("read") else {
            panic!("{text}")
        };
        help(&failed[0].message, failed[0].message.shortage(), Shown { rows: 10, bytes: false })
    }

    #[test]
    fn nobody_is_told_to_end_a_process_that_may_be_the_program() {
        let both = "Process 1 has 23.00 GiB memory in use. Process 2 has 600.00 MiB memory in use. ";
        let help = answer(both, "400.00 MiB", "10.00 MiB");
        let [only] = help.as_slice() else { panic!("{help:?}") };
        assert!(
            only.starts_with("one of the processes 1 (23.00 GiB), 2 (600.00 MiB) may be this program itself"),
            "{only}"
        );
        let named =
            format!("{both}Including non-PyTorch memory, this process has 300.00 MiB memory in use. ");
        let help = answer(&named, "100.00 MiB", "10.00 MiB");
        assert_eq!(
            help,
            ["end the other processes on this GPU, or use another GPU: 1 (23.00 GiB), 2 (600.00 MiB)"]
        );
    }

    /// The next commands after a message from AMD's allocator, on a GPU with this much free memory.
    fn of_amd(free: &str) -> Vec<String> {
        let text = format!(
            "HIP out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 63.98 GiB of which {free} is free. Of the allocated \
             memory 60.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory \
             is large try setting PYTORCH_HIP_ALLOC_CONF=expandable_segments:True"
        );
        let Some(Pasted::Log(Log { failed, .. })) = read(text.as_bytes()).expect("read") else {
            panic!("{text}")
        };
        commands(&failed[0].message, failed[0].message.shortage(), "python train.py")
    }

    #[test]
    fn no_command_for_nvidia_follows_a_message_of_amds() {
        assert_eq!(of_amd("0 bytes"), ["plimsoll record"]);
        let fragmented = "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True python train.py";
        assert_eq!(of_amd("1.00 GiB"), [fragmented, "plimsoll record"]);
    }

    #[test]
    fn under_fragmentation_other_processes_are_a_second_remedy() {
        let own = "Including non-PyTorch memory, this process has 13.00 GiB memory in use. ";
        let help = answer(&format!("Process 9 has 10.00 GiB memory in use. {own}"), "5.00 MiB", "600.00 MiB");
        let [first, second] = help.as_slice() else { panic!("{help:?}") };
        assert!(first.contains("expandable_segments:True"), "{first}");
        assert!(second.ends_with("use another GPU: 9 (10.00 GiB)"), "{second}");
        let small =
            answer(&format!("Process 9 has 200.00 MiB memory in use. {own}"), "10.50 GiB", "600.00 MiB");
        assert_eq!(small.len(), 1, "{small:?}");
    }
}
