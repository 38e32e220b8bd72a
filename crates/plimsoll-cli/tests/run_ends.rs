//! The output of `plimsoll run` for a program that ends for a reason other than running out of GPU memory, and for
//! training memory that was freed and never allocated again; on the stand-in.

use plimsoll_needs::needs;

use crate::program::{plimsoll, stderr};
use crate::standin;
use crate::torch::Torch;

#[test]
fn an_end_by_a_signal_is_named() {
    for (signal, said) in [
        ("KILL", "plimsoll: ended by SIGKILL: a scheduler, a container or a person killed it\n"),
        (
            "ABRT",
            "plimsoll: ended by SIGABRT: C++ code aborted, and the lines above say why; memory was the cause only if they say so\n",
        ),
        ("BUS", "plimsoll: ended by SIGBUS: most often /dev/shm is full (DataLoader workers "),
        ("SEGV", "plimsoll: ended by SIGSEGV: native code crashed; a lack of memory was not the cause\n"),
    ] {
        let command = format!("kill -{signal} $$");
        let output = plimsoll(&["run", "--", "sh", "-c", &command]);
        assert!(!output.status.success(), "{signal}");
        assert!(stderr(&output).starts_with(said), "{signal}: {}", stderr(&output));
        assert_eq!(stderr(&plimsoll(&["run", "--no-watch", "--", "sh", "-c", &command])), "", "{signal}");
    }
    let output = plimsoll(&["run", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(stderr(&output), "", "a scheduler's signal needs no explanation");
}

const READS: &str = "
import torch
x = torch.ones(4, device='cuda')
for _ in range(20):
    x.sum().item()
";

#[needs(pytorch)]
#[test]
fn an_illegal_address_an_assertion_and_a_lost_context_are_named() {
    let torch = Torch::new("ends", READS);
    for (code, said) in [
        (700, "ended by an illegal memory access of a kernel; a lack of memory was not the cause"),
        (710, "ended by an assertion in a kernel; a lack of memory was not the cause"),
        (719, "ended because the GPU's context was lost; a lack of memory was not the cause"),
    ] {
        let mut command = standin::run(&torch, &[], &[]);
        command.env("PLIMSOLL_STANDIN_FAULT", format!("cudaStreamSynchronize:9={code}"));
        let output = command.output().expect("it starts");
        let text = stderr(&output);
        let ours: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("plimsoll: ")).collect();
        assert_eq!((output.status.code(), ours.len(), ours.first()), (Some(1), 2, Some(&said)), "{text}");
    }
}

/// Freezes a layer in its second step, and skips every third step. Then trains with an optimizer that skips a step itself.
const CHANGES: &str = "
import torch
first, second = (torch.nn.Linear(1024, 1024, bias=False).cuda() for _ in range(2))
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
scaler = torch.amp.GradScaler('cuda')
for step in range(6):
    if step == 1:
        first.requires_grad_(False)
    optimizer.zero_grad()
    scaler.scale(second(first(torch.ones(4, 1024, device='cuda'))).sum()).backward()
    scaler.unscale_(optimizer)
    if step % 3 == 2:
        found = scaler._per_optimizer_states[id(optimizer)]['found_inf_per_device']
        found.update({device: torch.ones(1) for device in found})
    scaler.step(optimizer)
    scaler.update()
weight = torch.ones(4, requires_grad=True)
fused, on_host = torch.optim.SGD([weight], lr=0.1, fused=True), torch.amp.GradScaler('cpu')
for step in range(4):
    fused.zero_grad()
    on_host.scale(weight.sum() * (float('inf') if step == 2 else 1)).backward()
    on_host.step(fused)
    on_host.update()
";

#[needs(pytorch)]
#[test]
fn gradients_that_are_gone_and_skipped_steps_are_named_at_the_end() {
    let torch = Torch::new("changes", CHANGES);
    // The ranges change nothing.
    let output = standin::run(&torch, &["--nvtx"], &[]).output().expect("it starts");
    let said = "plimsoll: 4.00 MiB have not been live since step 1: the gradients of 1 parameter (weight), which are frozen\n\
                plimsoll: GradScaler skipped 3 of 10 steps: gradients were infinite or NaN\n";
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), said));
}
