//! Descriptions of GPUs: what is given, what is assumed, and what is rejected.

use super::*;
use crate::outside::{self, Library, Loading};
use crate::{GPUS, named};

fn made(text: &str) -> Described {
    described(text).unwrap_or_else(|why| panic!("{text}: {why}"))
}

#[test]
fn what_is_given_is_taken_and_the_rest_is_that_of_the_nearest_gpu() {
    let it = made("custom:memory=48GiB,sms=142,cc=8.9");
    assert_eq!((it.base, it.gpu.memory_bytes, it.gpu.capability), (Some("RTX-6000-Ada"), 48 << 30, (8, 9)));
    assert_eq!(it.assumed, ["threads", "bandwidth", "tflops"]);
    assert_eq!((it.gpu.name, it.gpu.card), ("custom", "Plimsoll custom"));
    let half = made("custom:like=RTX-6000-Ada,sms=71,name=Half");
    assert_eq!(half.gpu.flops.f16, named("RTX-6000-Ada").unwrap().flops.f16 / 2);
    assert_eq!(
        (half.gpu.name, half.assumed),
        ("Half", vec!["memory", "cc", "threads", "bandwidth", "tflops"])
    );
    let all = made("custom: sm=12.0, sms=70, threads=1536, mem=15.9GiB, bw=672GB/s, tflops=88");
    assert_eq!((all.base, all.assumed.len()), (None, 0));
    assert_eq!(all.gpu.memory_bytes, 17_072_495_002);
    assert_eq!(
        (all.gpu.bandwidth.memory_bytes_per_s, all.gpu.flops.f16),
        (672_000_000_000, 88_000_000_000_000)
    );
    // Without a compute capability, it is that of the GPU closest in size.
    assert_eq!(made("custom:memory=24GiB").gpu.capability, (8, 6));
}

#[test]
fn the_memory_outside_follows_from_the_description() {
    let context = |text: &str| outside::context(&made(text).gpu);
    assert_eq!(context("custom:like=H100").basis, Basis::Measured);
    // According to the rule: 2 KiB per thread.
    let by_rule = context("custom:like=H100,sms=100");
    assert_eq!((by_rule.bytes, by_rule.basis), (100 * 2048 * 2048, Basis::Derived));
    let given = context("custom:like=H100,sms=100,context=400MiB");
    assert_eq!((given.bytes, given.basis), (400 << 20, Basis::Given));
    let measured = context("custom:like=H100,context=7,basis=measured");
    assert_eq!((measured.bytes, measured.basis), (7, Basis::Measured));
    let first = |text: &str| Library::CuBlas.first_use(&made(text).gpu, Loading::Lazy).basis;
    assert_eq!(first("custom:like=H100,sms=100"), Basis::Measured, "the same code");
    assert_eq!(first("custom:memory=48GiB,cc=8.9"), Basis::Assumed);
    assert_eq!(outside::stream_bytes(&made("custom:like=H100,streams=128MiB").gpu, 64), 64 << 20);
    let reserve = |text: &str| outside::reserve(&made(text).gpu, made(text).gpu.memory_bytes);
    assert_eq!(reserve("custom:like=H100").basis, Basis::Measured);
    assert_eq!(reserve("custom:like=H100,memory=94GiB").basis, Basis::Assumed);
}

#[test]
fn each_listed_gpu_and_a_slice_are_read_back_from_their_text() {
    let slice = made("h100:2g.20gb").gpu;
    for gpu in GPUS.iter().chain([&slice]) {
        let back = made(&text(gpu));
        let plain = |it: &str| it.replace([',', '='], " ");
        let source = plain(gpu.memory_source);
        let expected = Gpu { datasheet: "given", memory_source: source.leak(), ..*gpu };
        assert_eq!(back.gpu, expected, "{}", gpu.name);
        assert_eq!(back.base, None, "{}", gpu.name);
    }
}

#[test]
fn a_wrong_description_says_what_is_wrong() {
    for (text, why) in [
        ("custom:", "needs the memory"),
        ("custom:cc=8.9", "needs the memory"),
        ("custom:memory", "`memory` is not PROPERTY=VALUE"),
        ("custom:memory=big", "memory=big is not valid; example: memory=48GiB"),
        ("custom:memory=48GiB,colour=red", "`colour` is not a property; known are memory, cc, sms"),
        ("custom:memory=48GiB,mem=24GiB", "memory is given twice"),
        ("custom:memory=48GiB,cc=nine", "cc=nine is not valid"),
        ("custom:memory=48GiB,cc=5.2", "no GPU of compute capability 5.2 or less"),
        ("custom:memory=48GiB,sms=0", "sms=0 is not valid"),
        ("custom:memory=48GiB,sms=-3", "sms=-3 is not valid"),
        ("custom:like=H9000", "not a known GPU"),
        ("custom:like=MI300X", "a GPU of AMD"),
        ("H100:5g.50gb", "not a known MIG profile of H100; known are 1g.10gb, 1g.20gb"),
        ("custom:memory=48GiB,cc=8.9,sms=2147483647", "sms=2147483647 is not valid; example: sms=142"),
        ("RTX-4090:1g.5gb", "no MIG profiles are known for RTX-4090"),
        ("custom:memory=99999999999TiB", "memory=99999999999TiB is not valid"),
        ("custom:memory=48GiB,bandwidth=0", "bandwidth=0 is not valid"),
        ("custom:memory=48GiB,tflops=nan", "tflops=nan is not valid"),
    ] {
        let found = described(text).map(|it| it.gpu.name).unwrap_err().to_string();
        assert!(found.contains(why), "{text}: {found}");
    }
}
