//! Streams and events. All work has finished when the call returns.

use std::ffi::{c_int, c_void};

use crate::argument::Out;
use crate::call::calls;
use crate::error::Outcome;
use crate::stream::{EventHandle, GraphHandle, StreamHandle, exchange_mode, is_watchdog, streams};
use crate::{comm, exchange, outside};

/// CUDA's capture states.
const NOT_CAPTURED: c_int = 0;
const CAPTURED: c_int = 1;

calls! { Runtime:
    fn cudaStreamCreate(stream: Out<StreamHandle>) {
        stream.put(outside::create_stream(0)?)
    }
    fn cudaStreamCreateWithFlags(stream: Out<StreamHandle>, _flags: u32) {
        stream.put(outside::create_stream(0)?)
    }
    fn cudaStreamCreateWithPriority(stream: Out<StreamHandle>, _flags: u32, priority: c_int) {
        stream.put(outside::create_stream(priority)?)
    }
    fn cudaStreamDestroy(stream: StreamHandle) {
        outside::destroy_stream(stream)
    }
    fn cudaStreamGetPriority(stream: StreamHandle, priority: Out<c_int>) {
        priority.put(streams().priority(stream)?)
    }
    fn cudaStreamGetFlags(_stream: StreamHandle, flags: Out<u32>) {
        flags.put(0)
    }
    fn cudaStreamQuery(stream: StreamHandle) {
        streams().settle(stream)
    }
    fn cudaStreamSynchronize(stream: StreamHandle) {
        comm::wait_for_others(exchange::deadline());
        streams().settle(stream)
    }
    fn cudaStreamWaitEvent(stream: StreamHandle, event: EventHandle, _flags: u32) {
        streams().wait(stream, event)
    }
    fn cudaStreamAddCallback(
        stream: StreamHandle, callback: extern "C" fn(StreamHandle, c_int, *mut c_void), data: *mut c_void,
        _flags: u32,
    ) {
        callback(stream, 0, data);
        Ok(())
    }
    fn cudaLaunchHostFunc(_stream: StreamHandle, callback: extern "C" fn(*mut c_void), data: *mut c_void) {
        callback(data);
        Ok(())
    }
    fn cudaEventCreate(event: Out<EventHandle>) {
        event.put(streams().create_event())
    }
    fn cudaEventCreateWithFlags(event: Out<EventHandle>, _flags: u32) {
        event.put(streams().create_event())
    }
    fn cudaEventDestroy(event: EventHandle) {
        streams().destroy_event(event)
    }
    fn cudaEventRecord(event: EventHandle, stream: StreamHandle) {
        streams().record(event, stream)
    }
    fn cudaEventRecordWithFlags(event: EventHandle, stream: StreamHandle, _flags: u32) {
        streams().record(event, stream)
    }
    fn cudaEventQuery(event: EventHandle) {
        if is_watchdog() && comm::is_in_use() { streams().query_late(event) } else { streams().settle_event(event) }
    }
    fn cudaEventSynchronize(event: EventHandle) {
        streams().settle_event(event)
    }
    /// The result is one millisecond for any two events: time does not pass here, but programs divide by it.
    fn cudaEventElapsedTime(milliseconds: Out<f32>, _begin: EventHandle, _end: EventHandle) {
        milliseconds.put(1.0)
    }
    fn cudaEventElapsedTime_v2(milliseconds: Out<f32>, _begin: EventHandle, _end: EventHandle) {
        milliseconds.put(1.0)
    }
    fn cudaStreamIsCapturing(stream: StreamHandle, status: Out<c_int>) {
        status.put(if streams().capture(stream)?.is_some() { CAPTURED } else { NOT_CAPTURED })
    }
    /// CUDA 13's form: status, ID, graph, and the last nodes of the capture, which are not reported.
    fn cudaStreamGetCaptureInfo(
        stream: StreamHandle, status: Out<c_int>, number: Out<u64>, graph: Out<GraphHandle>, nodes: Out<u64>,
        _edges: Out<u64>, count: Out<usize>,
    ) {
        capture_info(stream, (status, number, graph), (nodes, count))
    }
    /// CUDA 12's form, which has no edges.
    fn cudaStreamGetCaptureInfo_v2(
        stream: StreamHandle, status: Out<c_int>, number: Out<u64>, graph: Out<GraphHandle>, nodes: Out<u64>,
        count: Out<usize>,
    ) {
        capture_info(stream, (status, number, graph), (nodes, count))
    }
    fn cudaStreamBeginCapture(stream: StreamHandle, _mode: c_int) {
        streams().begin(stream)
    }
    fn cudaStreamEndCapture(stream: StreamHandle, graph: Out<GraphHandle>) {
        graph.put(streams().end(stream)?)
    }
    fn cudaThreadExchangeStreamCaptureMode(mode: Out<c_int>) {
        mode.put(exchange_mode(mode.get()?))
    }
}

fn capture_info(
    stream: StreamHandle,
    (status, number, graph): (Out<c_int>, Out<u64>, Out<GraphHandle>),
    (nodes, count): (Out<u64>, Out<usize>),
) -> Outcome {
    let capture = streams().capture(stream)?;
    nodes.offer(0);
    count.offer(0);
    number.offer(capture.map_or(0, |capture| capture.number));
    graph.offer(capture.map_or(0, |capture| capture.graph));
    status.put(if capture.is_some() { CAPTURED } else { NOT_CAPTURED })
}
