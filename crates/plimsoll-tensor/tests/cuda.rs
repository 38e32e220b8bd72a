//! The CUDA device on the stand-in driver: the kernels of all operators compile and are launched, with a GPU's memory requests
//! but without values.
//!
//! The library search path is read when a process starts, so each test starts this program again with the stand-in's
//! library instead of the driver. Tests that compile kernels need NVRTC: see `plimsoll-needs`.

#![cfg(target_os = "linux")]

#[path = "../../plimsoll-cuda/tests/python/mod.rs"]
mod python;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use plimsoll_needs::needs;
use plimsoll_tensor::op::{AdamStep, Decay, Rule, Slot, optimizer_step, optimizer_step_rounded};
use plimsoll_tensor::suite::{self, Outcome};
use plimsoll_tensor::{
    Activation, AttentionOptions, Conv2dOptions, CrossEntropyOptions, DType, Device, Error, Graph,
    MemoryFormat, OPERATORS, SimConfig, Tensor, allow_tf32_in_convolutions, allow_tf32_in_matmul,
    cuda_kernel_times, pinned,
};

use python::environment_of_python;

const INNER: &str = "PLIMSOLL_TEST_ON_STANDIN";

/// Whether this is the second process. The first one starts it and expects it to pass.
fn is_inner(test: &str, environment: &[(&str, &str)]) -> bool {
    if std::env::var_os(INNER).is_some() {
        return true;
    }
    let own = std::env::current_exe().unwrap();
    let library = own.with_file_name(plimsoll_standin::place::LIBRARY); // Cargo puts it next to the tests
    let folder: PathBuf = std::env::temp_dir().join(format!("plimsoll-cuda-{}-{test}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink(&library, folder.join("libcuda.so.1")).unwrap();
    std::os::unix::fs::symlink(&library, folder.join("libcublasLt.so.13")).unwrap();
    std::os::unix::fs::symlink(&library, folder.join("libcudnn.so.9")).unwrap();
    let mut command = Command::new(own);
    command
        .args(["--exact", &format!("cuda::{test}"), "--nocapture", "--include-ignored"])
        .env(INNER, "1")
        .env("LD_LIBRARY_PATH", &folder);
    command
        .env("XDG_CACHE_HOME", &folder)
        .env("PLIMSOLL_STANDIN_GPU", "H200")
        .envs(environment_of_python().map(|folder| ("VIRTUAL_ENV", folder)))
        .envs(environment.iter().copied());
    let output = command.output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

/// Runs every case of the suite. Values are not checked, because there are none.
fn launch_everything() {
    let gpu = Device::cuda(0).unwrap();
    let (mut missing, mut failed) = (BTreeSet::new(), Vec::new());
    for (_, cases) in OPERATORS.iter() {
        for case in cases() {
            match suite::check_near(&case, &gpu) {
                Ok(Outcome::Missing(op)) => drop(missing.insert(op)),
                Err(why) if why.contains(": an error: ") => failed.push(why),
                Ok(Outcome::Agrees) | Err(_) => {}
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    // These run on the host only, and a GPU refuses them by name.
    let (of_host, missing): (Vec<&str>, Vec<&str>) =
        missing.iter().partition(|op| op.starts_with("linalg_") || op.starts_with("fft_"));
    assert!(of_host.contains(&"linalg_inv") && of_host.contains(&"fft_rfft"), "{of_host:?}");
    assert!(missing.is_empty(), "operators without a kernel: {missing:?}");
}

#[needs(nvrtc)]
#[test]
fn every_operator_compiles_and_is_launched_for_hopper() {
    if is_inner("every_operator_compiles_and_is_launched_for_hopper", &[]) {
        launch_everything();
    }
}

/// Compiles every kernel for GPUs of these compute capabilities, each in its own process.
fn compile_for(test: &str, capabilities: &[&str]) {
    for capability in capabilities {
        if is_inner(test, &[("PLIMSOLL_STANDIN_CC", *capability)]) {
            launch_everything();
            return;
        }
    }
}

#[needs(nvrtc, nightly)]
#[test]
fn every_operator_compiles_for_the_oldest_and_the_newest_architecture() {
    compile_for("every_operator_compiles_for_the_oldest_and_the_newest_architecture", &["7.5", "12.0"]);
}

/// Takes some minutes.
#[needs(nvrtc, nightly)]
#[test]
fn every_operator_compiles_for_the_architectures_between() {
    compile_for("every_operator_compiles_for_the_architectures_between", &["8.0", "8.6", "8.9", "10.0"]);
}

#[test]
fn a_device_is_opened_once_and_knows_its_product() {
    if is_inner("a_device_is_opened_once_and_knows_its_product", &[]) {
        let gpu = Device::cuda(0).unwrap();
        assert!(gpu == Device::cuda(0).unwrap());
        assert_eq!(gpu.name(), "cuda:0");
        assert_eq!(gpu.properties().flops, Device::sim(SimConfig::like("H200").unwrap()).properties().flops);
        let error = Device::cuda(7).unwrap_err().to_string();
        assert_eq!(error, "cuda:7: open: cuda:7: there is 1 device here, numbered from 0");
    }
}

#[test]
fn memory_and_its_errors_are_the_allocators() {
    if is_inner("memory_and_its_errors_are_the_allocators", &[]) {
        let (gpu, sim) = (Device::cuda(0).unwrap(), Device::sim(SimConfig::like("H200").unwrap()));
        for device in [&gpu, &sim] {
            let x = Tensor::empty(&[1 << 20], DType::F32, device).unwrap();
            let error = Tensor::empty(&[1 << 40], DType::F32, device).unwrap_err();
            assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
            drop(x);
        }
        assert_eq!(gpu.max_memory_allocated(), sim.max_memory_allocated());
        assert_eq!(gpu.max_memory_reserved(), sim.max_memory_reserved());
        gpu.empty_cache().unwrap();
        assert_eq!(gpu.memory_reserved(), 0);
    }
}

/// A transformer block in 16 bits, a loss over a vocabulary of odd size, and an optimizer step with 32-bit copies.
fn train_in_short_floats(device: &Device) {
    let of = |shape: &[usize]| {
        let x = Tensor::zeros(shape, device).unwrap().to_dtype(DType::BF16).unwrap();
        x.requires_grad_(true).unwrap()
    };
    let (x, w, norm, head) = (of(&[2, 600, 128]), of(&[128, 384]), of(&[128]), of(&[1003, 128]));
    let normal = x.layer_norm(Some(&norm), Some(&norm), 1e-5).unwrap();
    let options = AttentionOptions { is_causal: true, ..AttentionOptions::default() };
    let mixed = normal.linear_in_out(&w, None).unwrap().packed_attention(2, 2, options).unwrap();
    let target = Tensor::from_slice(&[3_i64; 1200], &[2, 600], device).unwrap();
    let hidden = mixed.gelu_tanh().unwrap();
    hidden
        .linear_cross_entropy(&head, None, &target, CrossEntropyOptions::default())
        .unwrap()
        .backward()
        .unwrap();
    let (master, grad) = (Tensor::zeros(&[128, 384], device).unwrap(), w.grad().unwrap());
    let state = [(); 2].map(|()| Tensor::zeros(&[128, 384], device).unwrap());
    let rule = adam(0.1);
    let slot = Slot { parameter: &master, grad: &grad, state: &state, step: 1 };
    optimizer_step_rounded(&rule, &[slot], &[&w]).unwrap();
}

/// Trains perceptrons with each activation in a residual stream, where other kernels compute the bias gradients. The loss has
/// so many classes that each block processes several rows in turn.
fn train_perceptrons(device: &Device) {
    let of = |shape: &[usize], dtype: DType| {
        let x = Tensor::zeros(shape, device).unwrap().to_dtype(dtype).unwrap();
        x.requires_grad_(true).unwrap()
    };
    for dtype in [DType::BF16, DType::F32] {
        let (head, vector) = (of(&[20_003, 520], dtype), of(&[520], dtype));
        let mut x = of(&[2, 130, 520], dtype);
        for activation in [Activation::Relu, Activation::Gelu, Activation::GeluTanh, Activation::Silu] {
            let (up, bias, down) = (of(&[520, 900], dtype), of(&[900], dtype), of(&[520, 900], dtype));
            let wide = x.linear_in_out(&up, Some(&bias)).unwrap();
            let part = wide.activation_linear(activation, &down, Some(&vector)).unwrap();
            x = part.add_layer_norm(&x, Some(&vector), Some(&vector), 1e-5).unwrap().0;
        }
        let target = Tensor::from_slice(&[3_i64; 260], &[2, 130], device).unwrap();
        let loss = x.linear_cross_entropy(&head, None, &target, CrossEntropyOptions::default()).unwrap();
        loss.backward().unwrap();
    }
}

#[needs(nvrtc)]
#[test]
fn a_perceptron_is_computed_again_in_place_and_needs_the_memory_of_the_simulated_device() {
    let test = "a_perceptron_is_computed_again_in_place_and_needs_the_memory_of_the_simulated_device";
    if is_inner(test, &[]) {
        with_equal_peaks(train_perceptrons);
    }
}

/// AdamW's rule without decay.
fn adam(lr: f64) -> Rule {
    Rule::Adam(AdamStep {
        lr,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.0,
        decay: Decay::Decoupled,
        amsgrad: false,
        maximize: false,
        step: 0,
    })
}

/// Runs the same work on a GPU and its simulation, and checks that both needed the same peak memory.
fn with_equal_peaks(work: impl Fn(&Device)) -> (Device, Device) {
    let (gpu, sim) = (Device::cuda(0).unwrap(), Device::sim(SimConfig::like("H200").unwrap()));
    for device in [&gpu, &sim] {
        work(device);
    }
    assert_eq!(gpu.max_memory_allocated(), sim.max_memory_allocated());
    assert_eq!(gpu.max_memory_reserved(), sim.max_memory_reserved());
    (gpu, sim)
}

#[needs(nvrtc)]
#[test]
fn kernels_of_short_floats_compile_and_no_matrix_of_scores_is_allocated() {
    let test = "kernels_of_short_floats_compile_and_no_matrix_of_scores_is_allocated";
    if is_inner(test, &[]) {
        let (_, sim) = with_equal_peaks(train_in_short_floats);
        // The score matrix of one head of one sequence has 600 × 600 elements.
        let x = Tensor::zeros(&[8, 4, 600, 64], &sim).unwrap().to_dtype(DType::BF16).unwrap();
        let before = sim.memory_allocated();
        sim.reset_peak_memory_stats();
        let out = x.scaled_dot_product_attention(&x, &x, AttentionOptions::default()).unwrap();
        let log_sums = 8 * 4 * 600 * 4;
        assert!(sim.max_memory_allocated() - before <= (x.numel() * 2) as u64 + log_sums + 1024);
        drop(out);
    }
}

/// Tiled attention, forward and backward, on a projection with and without a bias: various widths and dtypes, causal or
/// not, and with grouped heads.
fn attend_in_short_floats(device: &Device) {
    for (dim, causal, dtype) in [64, 80, 128].into_iter().flat_map(|dim| {
        let types = [DType::BF16, DType::F16];
        types.into_iter().flat_map(move |dtype| [true, false].map(|causal| (dim, causal, dtype)))
    }) {
        let of = |shape: &[usize]| {
            let x = Tensor::zeros(shape, device).unwrap().to_dtype(dtype).unwrap();
            x.requires_grad_(true).unwrap()
        };
        let (x, w, bias) = (of(&[2, 77, 8]), of(&[8 * dim, 8]), of(&[8 * dim]));
        for bias in [None, Some(&bias)] {
            let options = AttentionOptions { is_causal: causal, ..AttentionOptions::default() };
            let y = x.linear(&w, bias).unwrap().packed_attention(4, 2, options).unwrap().sum().unwrap();
            let (done, times) = cuda_kernel_times(|| y.backward());
            done.unwrap();
            // The bias's gradient is computed together with that of the packed tensor.
            assert!(times.iter().all(|time| time.op != "sum"), "{times:?}");
        }
    }
}

#[needs(nvrtc)]
#[test]
fn attention_by_tiles_compiles_with_wgmma_and_needs_the_memory_of_the_simulated_device() {
    let test = "attention_by_tiles_compiles_with_wgmma_and_needs_the_memory_of_the_simulated_device";
    if is_inner(test, &[]) {
        with_equal_peaks(attend_in_short_floats);
    }
}

#[needs(nvrtc)]
#[test]
fn attention_by_tiles_compiles_where_there_is_no_wgmma() {
    let test = "attention_by_tiles_compiles_where_there_is_no_wgmma";
    if is_inner(test, &[("PLIMSOLL_STANDIN_CC", "8.9")]) {
        attend_in_short_floats(&Device::cuda(0).unwrap());
    }
}

#[needs(nvrtc)]
#[test]
fn functions_of_whole_numbers_compile() {
    if !is_inner("functions_of_whole_numbers_compile", &[]) {
        return;
    }
    let device = Device::cuda(0).unwrap();
    for dtype in [DType::I64, DType::I32, DType::U8] {
        let n = Tensor::ones(&[40], &device).unwrap().to_dtype(dtype).unwrap();
        let all: [fn(&Tensor) -> plimsoll_tensor::Result<Tensor>; 13] = [
            |n| n.floor(),
            |n| n.ceil(),
            |n| n.round(),
            |n| n.trunc(),
            |n| n.pow(n),
            |n| n.floor_divide_scalar(3),
            |n| n.remainder_scalar(3),
            |n| n.fmod_scalar(3),
            |n| n.div_trunc_scalar(3),
            |n| n.clamp(1.0, 2.0),
            |n| n.sign(),
            |n| n.abs(),
            |n| n.relu(),
        ];
        for (nth, function) in all.into_iter().enumerate() {
            let result = function(&n).unwrap_or_else(|error| panic!("{nth}, {dtype:?}: {error}"));
            assert_eq!(result.dtype(), dtype, "{nth}");
        }
    }
}

/// Runs a step with dropout and an optimizer normally a few times, then captures it and replays it with other numbers.
fn capture_and_replay(device: &Device) {
    device.manual_seed(5);
    let w = Tensor::zeros(&[128, 384], device).unwrap().requires_grad_(true).unwrap();
    let state = [(); 2].map(|()| Tensor::zeros(&[128, 384], device).unwrap());
    let x = Tensor::zeros(&[64, 128], device).unwrap();
    let target = Tensor::from_slice(&[3_i64; 64], &[64], device).unwrap();
    let step = |number: u64| -> plimsoll_tensor::Result<Tensor> {
        w.clear_grad();
        let options = CrossEntropyOptions::default();
        let loss = x.dropout(0.5, true)?.matmul(&w)?.gelu_tanh()?.cross_entropy_with(&target, options)?;
        loss.backward()?;
        let slot = Slot { parameter: &w, grad: &w.grad().unwrap(), state: &state, step: number };
        optimizer_step(&adam(0.1), &[slot])?;
        Ok(loss)
    };
    drop((step(1).unwrap(), step(2).unwrap()));
    let random = device.rng_state();
    let (mut graph, loss) = Graph::capture(device, None, || step(3)).unwrap();
    assert_eq!((graph.step_count(), graph.step_parameters(0)[0].id()), (1, w.id()));
    assert_eq!(device.rng_state(), random);
    for number in 3..6 {
        graph.set_step(0, &adam(1.0 / number as f64), &[number]).unwrap();
        graph.replay().unwrap();
    }
    assert_eq!(device.rng_state().next_stream, random.next_stream + 3);
    let error = graph.set_step(0, &adam(0.1), &[1, 2]).unwrap_err().to_string();
    assert!(error.contains("a step captured for 1 parameters of adamw cannot be replayed for 2"), "{error}");
    let error = Graph::capture(device, None, || x.exp()?.sum()?.item::<f32>()).unwrap_err();
    assert!(matches!(error, Error::Captured { .. } | Error::NoValues { .. }), "{error}");
    device.synchronize().unwrap();
    drop((graph, loss));
}

#[needs(nvrtc)]
#[test]
fn a_captured_step_has_the_memory_of_the_simulated_device() {
    let test = "a_captured_step_has_the_memory_of_the_simulated_device";
    if is_inner(test, &[]) {
        let (gpu, sim) = with_equal_peaks(capture_and_replay);
        gpu.empty_cache().unwrap();
        sim.empty_cache().unwrap();
        assert_eq!(gpu.memory_reserved(), sim.memory_reserved());
    }
}

/// Convolutions of small images with a bias, forward and backward: row-major and channels-last, with strides, dilation, and
/// 1-D.
fn convolve_small_images(device: &Device) {
    // Images, filters, stride and padding.
    let sizes = [
        [[8, 1, 28, 28], [32, 1, 5, 5], [1, 1, 2, 2]],
        [[8, 32, 14, 14], [64, 32, 5, 5], [1, 1, 0, 0]],
        [[3, 20, 9, 11], [10, 20, 3, 3], [1, 1, 1, 3]],
        [[3, 3, 17, 15], [12, 3, 3, 5], [2, 3, 1, 2]],
        [[5, 24, 1, 90], [33, 24, 1, 4], [1, 1, 0, 5]],
    ];
    for format in [MemoryFormat::Contiguous, MemoryFormat::ChannelsLast] {
        for [images, filters, [down, across, above, beside]] in sizes {
            let (stride, padding) = ([down, across], [above, beside]);
            let of = |shape: &[usize]| {
                let x = Tensor::zeros(shape, device).unwrap();
                let x = if shape.len() == 4 { x.to_memory_format(format).unwrap() } else { x };
                x.requires_grad_(true).unwrap()
            };
            let (x, w, bias) = (of(&images), of(&filters), of(&filters[..1]));
            let options = Conv2dOptions { stride, padding: padding.into(), ..Conv2dOptions::default() };
            x.conv2d(&w, Some(&bias), options).unwrap().sum().unwrap().backward().unwrap();
        }
    }
}

/// The kernels that a program launches on a GPU for operators whose name starts with `op`.
fn work_of(op: &str, program: impl FnOnce()) -> Vec<String> {
    let ((), times) = cuda_kernel_times(program);
    times.into_iter().filter(|time| time.op.starts_with(op)).map(|time| time.work).collect()
}

#[needs(nvrtc)]
#[test]
fn convolutions_of_small_images_run_on_tensor_cores_with_the_memory_of_the_simulated_device() {
    let test = "convolutions_of_small_images_run_on_tensor_cores_with_the_memory_of_the_simulated_device";
    if is_inner(test, &[]) {
        let (gpu, _) = with_equal_peaks(convolve_small_images);
        let by_cudnn =
            |work: &String| ["Forward", "ToInput", "ToWeight"].iter().any(|pass| work.starts_with(pass));
        let work = work_of("conv2d", || convolve_small_images(&gpu));
        // Only the image gradient of a strided convolution is left to cuDNN.
        assert_eq!(work.iter().filter(|work| by_cudnn(work)).count(), 1, "{work:?}");
        allow_tf32_in_convolutions(false);
        let work = work_of("conv2d", || convolve_small_images(&gpu));
        assert!(work.iter().filter(|work| by_cudnn(work)).count() >= 10, "{work:?}");
    }
}

#[needs(nvrtc)]
#[test]
fn matrix_products_are_computed_in_tf32_only_where_that_is_allowed() {
    if is_inner("matrix_products_are_computed_in_tf32_only_where_that_is_allowed", &[]) {
        let gpu = Device::cuda(0).unwrap();
        let work = |dtype| {
            let x = Tensor::zeros(&[32, 32], &gpu).unwrap().to_dtype(dtype).unwrap();
            work_of("matmul", || drop(x.matmul(&x).unwrap()))
        };
        assert_eq!(work(DType::F32), ["1 [32 32 32] nn"]);
        allow_tf32_in_matmul(true);
        assert_eq!(work(DType::F32), ["1 [32 32 32] nn tf32"]);
        assert_eq!(work(DType::BF16), ["1 [32 32 32] nn"]);
    }
}

/// Until a kernel runs, the stand-in remembers the bytes that were copied last, so these values come back.
#[test]
fn pinned_memory_is_copied_there_and_back_and_goes_back_to_the_system() {
    if is_inner("pinned_memory_is_copied_there_and_back_and_goes_back_to_the_system", &[]) {
        let (gpu, host) = (Device::cuda(0).unwrap(), Device::cpu());
        // One chunk is mapped before the GPU registers existing memory, the other after.
        for value in [3.0, 4.0] {
            let batch = Tensor::from_slice(&[value; 1000], &[1000], &host).unwrap().pin_memory().unwrap();
            let there = batch.to_device_non_blocking(&gpu).unwrap();
            let back = there.to_device_non_blocking(&host).unwrap();
            assert!(back.is_pinned());
            assert_eq!(back.to_vec::<f32>().unwrap(), [value; 1000]);
        }
        pinned::empty_host_cache().unwrap();
        assert_eq!(pinned::host_memory_stats()["allocated_bytes.current"], 0);
    }
}

#[test]
fn settings_of_the_allocator_are_read_as_pytorch_reads_them() {
    let environment = [("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")];
    if is_inner("settings_of_the_allocator_are_read_as_pytorch_reads_them", &environment) {
        let gpu = Device::cuda(0).unwrap();
        let x = Tensor::empty(&[30 << 20], DType::F32, &gpu).unwrap();
        // Segments grow by pages of 20 MiB; there is no segment of the request's size.
        assert_eq!(gpu.memory_reserved(), 120 << 20);
        drop(x);
        gpu.empty_cache().unwrap();
        assert_eq!(gpu.memory_reserved(), 0);
    }
}

#[test]
fn settings_that_pytorch_refuses_are_refused() {
    let environment = [("PYTORCH_ALLOC_CONF", "max_split_size_mb:x")];
    if is_inner("settings_that_pytorch_refuses_are_refused", &environment) {
        let error = Device::cuda(0).unwrap_err().to_string();
        assert!(error.contains("PYTORCH_ALLOC_CONF=max_split_size_mb:x"), "{error}");
    }
}

#[needs(nvrtc)]
#[test]
fn after_a_reset_the_device_works_again_and_handles_from_before_say_so() {
    if !is_inner("after_a_reset_the_device_works_again_and_handles_from_before_say_so", &[]) {
        return;
    }
    let gpu = Device::cuda(0).unwrap();
    let lost = Tensor::zeros(&[1 << 20], &gpu).unwrap();
    let again = gpu.reset().unwrap();
    assert!(again != gpu && again == Device::cuda(0).unwrap());
    assert_eq!(again.memory_allocated(), 0);
    for error in [lost.copy().unwrap_err(), Tensor::zeros(&[4], &gpu).unwrap_err(), gpu.reset().unwrap_err()]
    {
        assert!(error.to_string().contains("from before cuda:0 was reset"), "{error}");
    }
    let kept = Tensor::zeros(&[1 << 20], &again).unwrap();
    drop((lost, gpu));
    assert_eq!(again.memory_allocated(), 4 << 20, "what was lost frees nothing of the device's");
    drop(kept);
    let error = Device::cpu().reset().unwrap_err().to_string();
    assert_eq!(error, "reset: cpu: only a GPU can be reset");
}
