//! Streams and events: the runtime's, under the driver's names.

use std::ffi::{c_int, c_uint};

use crate::argument::Out;
use crate::call::{calls, nothing};
use crate::gpu::current_device;
use crate::outside;
use crate::stream::{EventHandle, StreamHandle, streams};

calls! { Driver:
    fn cuStreamCreate(stream: Out<StreamHandle>, _flags: c_uint) {
        stream.put(outside::create_stream(0)?)
    }
    fn cuStreamCreateWithPriority(stream: Out<StreamHandle>, _flags: c_uint, priority: c_int) {
        stream.put(outside::create_stream(priority)?)
    }
    fn cuStreamDestroy_v2(stream: StreamHandle) {
        outside::destroy_stream(stream)
    }
    fn cuStreamSynchronize(stream: StreamHandle) {
        streams().settle(stream)
    }
    fn cuStreamQuery(stream: StreamHandle) {
        streams().settle(stream)
    }
    fn cuStreamWaitEvent(stream: StreamHandle, event: EventHandle, _flags: c_uint) {
        streams().wait(stream, event)
    }
    fn cuStreamIsCapturing(stream: StreamHandle, status: Out<c_int>) {
        status.put(c_int::from(streams().capture(stream)?.is_some()))
    }
    fn cuStreamGetCtx(stream: StreamHandle, context: Out<u64>) {
        streams().priority(stream)?;
        context.put(current_device()? as u64 + 1)
    }
    fn cuEventCreate(event: Out<EventHandle>, _flags: c_uint) {
        event.put(streams().create_event())
    }
    fn cuEventDestroy_v2(event: EventHandle) {
        streams().destroy_event(event)
    }
    fn cuEventRecord(event: EventHandle, stream: StreamHandle) {
        streams().record(event, stream)
    }
    fn cuEventQuery(event: EventHandle) {
        streams().settle_event(event)
    }
    fn cuEventSynchronize(event: EventHandle) {
        streams().settle_event(event)
    }
    fn cuEventElapsedTime(milliseconds: Out<f32>, _begin: EventHandle, _end: EventHandle) {
        milliseconds.put(1.0)
    }
}

nothing! { Driver: cuStreamWaitValue32 cuStreamWaitValue32_v2 }
