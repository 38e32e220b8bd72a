//! `nvidia-smi` for the simulated devices, for programs that call it: its table, `-L`, and `--query-gpu=…
//! --format=csv`.

use std::fmt::Write;

use plimsoll_gpu::Pool;

use crate::gpu::setup;
use crate::nvml::{DRIVER, idle, uuid_text};
use crate::share;

/// The text for stdout with these arguments.
///
/// ```
/// // One device by default.
/// assert!(plimsoll_standin::smi::answer(&["-L".to_owned()])?.starts_with("GPU 0: NVIDIA "));
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
///
/// A message that names the unsupported argument or field.
pub fn answer(arguments: &[String]) -> Result<String, String> {
    let (mut query, mut format, mut only, mut is_list) = (None, String::new(), None, false);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let (name, value) =
            argument.split_once('=').map_or((argument.as_str(), None), |(name, value)| (name, Some(value)));
        let mut value = || value.map(str::to_owned).or_else(|| rest.next().cloned()).unwrap_or_default();
        match name {
            "-L" | "--list-gpus" => is_list = true,
            "--query-gpu" => query = Some((value(), true)),
            "--query-compute-apps" | "--query-apps" => query = Some((value(), false)),
            "--format" => format = value(),
            "-i" | "--id" => only = Some(value()),
            _ => {
                return Err(format!(
                    "{argument} is not supported by the stand-in; -L, --query-gpu=FIELDS --format=csv and -i N are"
                ));
            }
        }
    }
    let chosen = |device: &usize| {
        let names =
            |only: &String| only.split(',').any(|it| it == device.to_string() || it == uuid_text(*device));
        only.as_ref().is_none_or(names)
    };
    let devices: Vec<usize> = (0..setup().devices()).filter(chosen).collect();
    match query {
        _ if is_list => Ok(list(&devices)),
        Some((fields, is_gpu)) => csv(&fields, &format, if is_gpu { &devices } else { &[] }),
        None => Ok(table(&devices)),
    }
}

fn list(devices: &[usize]) -> String {
    devices.iter().map(|it| format!("GPU {it}: {} (UUID: {})\n", setup().gpu.card, uuid_text(*it))).collect()
}

/// A row per device, with a value and its unit per field.
fn csv(fields: &str, format: &str, devices: &[usize]) -> Result<String, String> {
    let options: Vec<&str> = format.split(',').collect();
    if !options.contains(&"csv") {
        return Err("--query needs --format=csv".to_owned());
    }
    let fields: Vec<&str> = fields.split(',').map(str::trim).collect();
    let known: Result<Vec<_>, _> = fields.iter().map(|name| field(name, 0).map(|(_, unit)| unit)).collect();
    let units = known?;
    let mut out = String::new();
    if !options.contains(&"noheader") {
        let name = |(name, unit): (&&str, &&str)| {
            if unit.is_empty() { (*name).to_owned() } else { format!("{name} [{unit}]") }
        };
        out += &(fields.iter().zip(&units).map(name).collect::<Vec<_>>().join(", ") + "\n");
    }
    for device in devices {
        let row: Result<Vec<String>, String> = fields
            .iter()
            .map(|name| field(name, *device))
            .map(|it| {
                it.map(|(value, unit)| {
                    if unit.is_empty() || options.contains(&"nounits") {
                        value
                    } else {
                        format!("{value} {unit}")
                    }
                })
            })
            .collect();
        out += &(row?.join(", ") + "\n");
    }
    Ok(out)
}

/// The value of a field for a device, and its unit.
fn field(name: &str, device: usize) -> Result<(String, &'static str), String> {
    let gpu = &setup().gpu;
    if gpu.pool == Pool::Host && name.contains("memory.") {
        return Ok(("[N/A]".to_owned(), ""));
    }
    let mib = |bytes: u64| (bytes >> 20).to_string();
    let used_bytes = used_bytes(device);
    let clock = |kind| idle::clock_mhz(kind).unwrap_or(0).to_string();
    Ok(match name {
        "index" => (device.to_string(), ""),
        "count" => (setup().devices().to_string(), ""),
        "name" | "gpu_name" => (gpu.card.to_owned(), ""),
        "uuid" | "gpu_uuid" => (uuid_text(device), ""),
        "pci.bus_id" | "gpu_bus_id" => (format!("0000{}", setup().pci(device).to_uppercase()), ""),
        "driver_version" => (DRIVER.to_owned(), ""),
        "compute_cap" => (format!("{}.{}", gpu.capability.0, gpu.capability.1), ""),
        "memory.total" => (mib(setup().memory_bytes()), "MiB"),
        "memory.used" | "used_gpu_memory" | "used_memory" => (mib(used_bytes), "MiB"),
        "memory.free" => (mib(setup().memory_bytes().saturating_sub(used_bytes)), "MiB"),
        "memory.reserved" => ("0".to_owned(), "MiB"),
        "utilization.gpu" | "utilization.memory" | "fan.speed" => ("0".to_owned(), "%"),
        "temperature.gpu" => (idle::TEMPERATURE.to_string(), ""),
        "power.draw" | "power.draw.instant" | "power.draw.average" => {
            (format!("{}.00", idle::power_mw() / 1000), "W")
        }
        "power.limit" | "enforced.power.limit" | "power.default_limit" | "power.max_limit" => {
            (format!("{}.00", gpu.power_watts), "W")
        }
        "clocks.gr"
        | "clocks.sm"
        | "clocks.current.graphics"
        | "clocks.current.sm"
        | "clocks.max.sm"
        | "clocks.max.graphics"
        | "clocks.max.gr" => (clock(1), "MHz"),
        "clocks.mem" | "clocks.current.memory" | "clocks.max.mem" | "clocks.max.memory" => (clock(2), "MHz"),
        "pstate" => ("P0".to_owned(), ""),
        "persistence_mode" => ("Enabled".to_owned(), ""),
        "compute_mode" => ("Default".to_owned(), ""),
        "mig.mode.current" | "mig.mode.pending" => ("Disabled".to_owned(), ""),
        "display_active" | "display_mode" => ("Disabled".to_owned(), ""),
        "pid" | "process_name" => (String::new(), ""),
        _ => return Err(format!("Field \"{name}\" is not supported by the stand-in")),
    })
}

/// The bytes of a device that all processes and other programs use now.
fn used_bytes(device: usize) -> u64 {
    setup().others_bytes.saturating_add(share::others_bytes(setup().in_machine(device)))
}

/// The table, which is printed without arguments.
fn table(devices: &[usize]) -> String {
    let mut out = String::new();
    let line =
        "+-----------------------------------------------------------------------------------------+\n";
    let gpu = &setup().gpu;
    let cuda = crate::version::DRIVER;
    let version = format!("{}.{}", cuda / 1000, cuda % 1000 / 10);
    // Writing to a `String` cannot fail.
    let _ = writeln!(
        out,
        "{line}| NVIDIA-SMI {DRIVER:<22} Driver Version: {DRIVER:<14} CUDA Version: {version:<8}  |"
    );
    out += line;
    let _ = writeln!(out, "| {:<4} {:<40} {:<18} {:<21} |", "GPU", "Name", "Bus-Id", "Memory-Usage");
    out += line;
    for device in devices {
        let memory = match gpu.pool {
            Pool::Host => "Not Supported".to_owned(),
            Pool::Own | Pool::Coherent => {
                format!("{}MiB / {}MiB", used_bytes(*device) >> 20, setup().memory_bytes() >> 20)
            }
        };
        let bus = format!("0000{}", setup().pci(*device).to_uppercase());
        let _ = writeln!(out, "| {device:<4} {:<40} {bus:<18} {memory:<21} |", gpu.card);
    }
    out += line;
    out += "Imitated by plimsoll predict: no GPU is in use.\n";
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(arguments: &[&str]) -> Result<String, String> {
        answer(&arguments.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_query_prints_a_row_for_each_device() {
        let rows = asked(&["--query-gpu=index,name,memory.total,memory.used", "--format=csv"]).unwrap();
        let rows: Vec<&str> = rows.lines().collect();
        assert_eq!(rows[0], "index, name, memory.total [MiB], memory.used [MiB]");
        assert!(rows[1].starts_with("0, NVIDIA A100-SXM4-80GB, 81049 MiB, "), "{rows:?}");
        let plain = asked(&["--query-gpu", "memory.total", "--format", "csv,noheader,nounits", "-i", "0"]);
        assert_eq!(plain.as_deref(), Ok("81049\n"));
        assert!(asked(&["--query-gpu=colour", "--format=csv"]).unwrap_err().contains("colour"));
        assert!(asked(&["topo", "-m"]).unwrap_err().contains("topo"));
        assert!(asked(&[]).unwrap().contains("NVIDIA A100-SXM4-80GB"));
    }
}
