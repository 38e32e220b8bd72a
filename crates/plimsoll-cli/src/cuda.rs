//! `plimsoll doctor cuda[:N]`: reports on an NVIDIA GPU and its installed libraries, and checks whether operators
//! compute correctly on it.

use std::fmt::{Display, Write};

use plimsoll::suite::{Case, Comparison, compare_cases};
use plimsoll::{Bytes, CudaReport, Device, OPERATORS, allow_tf32_in_convolutions, cuda_report};
use serde_json::json;

use crate::exit::{Answer, Exit, Failure};
use crate::output::{BOLD, RESET};

/// The number of a device named `cuda` or `cuda:N`.
pub(crate) fn ordinal(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("cuda") {
        Some("") => Some(0),
        Some(rest) => rest.strip_prefix(':').and_then(|number| number.parse().ok()),
        None => None,
    };
    number.ok_or_else(|| format!("`{text}` is not a GPU: use `cuda`, or `cuda:N` (counted from 0)"))
}

/// The consequence of a missing cuDNN, after the reason.
pub(crate) fn without_dnn(why: &impl Display) -> String {
    format!("{why}; convolutions use plain kernels, which are slow")
}

/// Runs every case of the operator suite on a device and on the host.
fn self_test(device: &Device) -> Comparison {
    // The host multiplies in float32.
    allow_tf32_in_convolutions(false);
    let cases: Vec<Case> = OPERATORS.iter().flat_map(|(_, cases)| cases()).collect();
    compare_cases(&cases, device)
}

/// Examines a GPU. If there is none, the failure says what is missing and where it was searched for.
pub(crate) fn run(text: &str, as_json: bool) -> Result<Answer, Failure> {
    let ordinal = ordinal(text).map_err(|message| Failure::new(Exit::Usage, message))?;
    let report = cuda_report(ordinal)?;
    let test = match &report.libraries.nvrtc {
        Ok(_) => Some(self_test(&Device::cuda(ordinal)?)),
        Err(_) => None,
    };
    let is_well = report.libraries.blas.is_ok() && test.as_ref().is_some_and(|test| test.differ.is_empty());
    let text = if as_json { in_json(&report, test.as_ref()) } else { in_words(&report, test.as_ref()) };
    Ok(Answer { text, exit: if is_well { Exit::Done } else { Exit::Assertion } })
}

fn in_words(report: &CudaReport, test: Option<&Comparison>) -> String {
    let CudaReport { facts, devices, libraries, memory: (free, total) } = report;
    let mut out = String::new();
    let mut row = |name: &str, text: String| {
        // Writing to a `String` cannot fail.
        let _ = writeln!(out, "  {name:<10}  {text}");
    };
    let (major, minor) = facts.capability;
    row("memory", format!("{} of {} free", Bytes(*free), Bytes(*total)));
    row("kind", format!("compute capability {major}.{minor}, {} multiprocessors", facts.multiprocessors));
    let (major, minor) = facts.driver;
    row("driver", format!("{}, for CUDA up to {major}.{minor}", libraries.driver));
    row(
        "NVRTC",
        match &libraries.nvrtc {
            Ok(((major, minor), path)) => format!("{major}.{minor}, {path}"),
            Err(error) => error.to_string(),
        },
    );
    row("cuBLASLt", libraries.blas.clone().unwrap_or_else(|error| error.to_string()));
    row(
        "cuDNN",
        match &libraries.dnn {
            Ok((version, path)) => format!("{version}, {path}"),
            Err(error) => without_dnn(error),
        },
    );
    row(
        "NCCL",
        match &libraries.nccl {
            Ok((version, path)) => format!("{version}, {path}"),
            Err(error) => format!("{error}; needed only for several GPUs"),
        },
    );
    match test {
        None => row("self-test", "not run: kernels cannot be compiled".to_owned()),
        Some(Comparison { agree, differ, missing }) => {
            row(
                "self-test",
                format!(
                    "{agree} checks (each case in four types) agree with the host, {} differ",
                    differ.len()
                ),
            );
            differ.iter().for_each(|why| row("", why.clone()));
            let missing: Vec<&str> = missing.iter().copied().collect();
            if !missing.is_empty() {
                row("not yet", missing.join(", "));
            }
        }
    }
    format!("{BOLD}cuda:{} of {devices}: {}{RESET}\n{out}", facts.ordinal, facts.name)
}

fn in_json(report: &CudaReport, test: Option<&Comparison>) -> String {
    let CudaReport { facts, devices, libraries, memory: (free, total) } = report;
    let test =
        test.map(|test| json!({ "agree": test.agree, "differ": test.differ, "missing": test.missing }));
    let value = json!({
        "schema": "plimsoll.doctor.cuda/1",
        "device": facts.ordinal,
        "devices": devices,
        "name": facts.name,
        "capability": [facts.capability.0, facts.capability.1],
        "multiprocessors": facts.multiprocessors,
        "free_bytes": free,
        "total_bytes": total,
        "driver": { "path": libraries.driver, "cuda": [facts.driver.0, facts.driver.1] },
        "nvrtc": match &libraries.nvrtc {
            Ok(((major, minor), path)) => json!({ "path": path, "version": [major, minor] }),
            Err(error) => json!({ "error": error.to_string() }),
        },
        "cublaslt": match &libraries.blas {
            Ok(path) => json!({ "path": path }),
            Err(error) => json!({ "error": error.to_string() }),
        },
        "cudnn": match &libraries.dnn {
            Ok((version, path)) => json!({ "path": path, "version": version }),
            Err(error) => json!({ "error": error.to_string() }),
        },
        "nccl": match &libraries.nccl {
            Ok((version, path)) => json!({ "path": path, "version": version }),
            Err(error) => json!({ "error": error.to_string() }),
        },
        "self_test": test,
    });
    format!("{value:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_named_by_its_number() {
        assert_eq!((ordinal("cuda"), ordinal("cuda:3")), (Ok(0), Ok(3)));
        for wrong in ["cuda:", "cuda:x", "cuda:-1", "cudax", "gpu"] {
            assert!(ordinal(wrong).is_err(), "{wrong}");
        }
    }
}
