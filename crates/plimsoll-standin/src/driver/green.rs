//! Green contexts: contexts for some of a device's multiprocessors. They share the device's memory, so here each is the
//! device's only context.

use std::ffi::{c_int, c_uint, c_void};

use super::ContextHandle;
use crate::argument::Out;
use crate::call::{calls, new_handle, nothing};
use crate::error::Failure;
use crate::gpu::{current_device, setup};
use crate::outside;
use crate::stream::StreamHandle;

/// `CU_DEV_RESOURCE_TYPE_SM`.
const MULTIPROCESSORS: c_int = 1;

/// `CUdevResource` of multiprocessors.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Resource {
    kind: c_int,
    internal: [u8; 92],
    multiprocessors: c_uint,
    smallest_part: c_uint,
    alignment: c_uint,
    rest: [u32; 9],
}

impl Resource {
    fn of(multiprocessors: c_uint) -> Resource {
        let part = part();
        let rest = [0; 9];
        Resource {
            kind: MULTIPROCESSORS,
            internal: [0; 92],
            multiprocessors,
            smallest_part: part,
            alignment: part,
            rest,
        }
    }
}

/// The size of the smallest partition, in multiprocessors. Larger partitions are multiples of it.
fn part() -> c_uint {
    if setup().gpu.capability.0 >= 9 { 8 } else { 2 }
}

calls! { Driver:
    fn cuDeviceGetDevResource(device: c_int, resource: Out<Resource>, kind: c_int) {
        setup().device(device)?;
        if kind != MULTIPROCESSORS {
            return Err(Failure::NotSupported);
        }
        resource.put(Resource::of(setup().gpu.multiprocessors.unsigned_abs()))
    }
    /// As many groups as fit, each of at least this many multiprocessors. A null array requests only their number.
    fn cuDevSmResourceSplitByCount(
        groups: Out<u8>, count: Out<c_uint>, whole: Out<Resource>, remaining: Out<Resource>, _flags: c_uint,
        least: c_uint,
    ) {
        let all = whole.get()?.multiprocessors;
        let each = least.max(part()).next_multiple_of(part());
        let wanted = count.get()?;
        let fit = if wanted == 0 { all / each } else { wanted.min(all / each) };
        let group = Resource::of(each);
        let bytes = [
            group.kind.to_ne_bytes().to_vec(),
            group.internal.to_vec(),
            [group.multiprocessors, group.smallest_part, group.alignment].map(u32::to_ne_bytes).concat(),
            vec![0; 36],
        ];
        // The array may be null.
        let _counted = groups.put_bytes(&bytes.concat().repeat(fit as usize));
        remaining.offer(Resource::of(all - fit * each));
        count.put(fit)
    }
    fn cuDevResourceGenerateDesc(description: Out<u64>, _resources: *const c_void, _count: c_uint) {
        description.put(new_handle())
    }
    fn cuGreenCtxCreate(context: Out<ContextHandle>, _description: u64, device: c_int, _flags: c_uint) {
        context.put(setup().device(device)? as ContextHandle + 1)
    }
    fn cuCtxFromGreenCtx(context: Out<ContextHandle>, green: ContextHandle) {
        context.put(green)
    }
    fn cuGreenCtxGetDevResource(_green: ContextHandle, resource: Out<Resource>, _kind: c_int) {
        current_device()?;
        resource.put(Resource::of(setup().gpu.multiprocessors.unsigned_abs()))
    }
    fn cuGreenCtxStreamCreate(stream: Out<StreamHandle>, _green: ContextHandle, _flags: c_uint, priority: c_int) {
        stream.put(outside::create_stream(priority)?)
    }
}

nothing! { Driver: cuGreenCtxDestroy cuGreenCtxRecordEvent cuGreenCtxWaitEvent }
const _: () = assert!(size_of::<Resource>() == 144);
