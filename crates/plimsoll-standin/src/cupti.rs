//! CUPTI, which profilers use (`torch.profiler` with CUDA activities): profilers start and stop as on a GPU, and record no
//! kernels, because none run.
//!
//! NVIDIA's own library must not be called: it needs undocumented tables of the driver, and recurses endlessly if they
//! are missing. So even calls that need no device are answered here.

use std::ffi::{c_char, c_int, c_void};

use crate::argument::Out;
use crate::call::{calls, new_handle, nothing};

/// `CUPTI_API_VERSION` of CUDA 13.
const VERSION: u32 = 130_200;
/// `CUPTI_ERROR_MAX_LIMIT_REACHED`: a buffer has no further record.
const NO_MORE_RECORDS: c_int = 12;

calls! { Profiler:
    fn cuptiGetVersion(version: Out<u32>) {
        version.put(VERSION)
    }
    fn cuptiGetResultString(result: c_int, text: Out<*const c_char>) {
        text.put(if result == 0 { c"CUPTI_SUCCESS".as_ptr() } else { c"an error of the stand-in device".as_ptr() })
    }
    fn cuptiGetCallbackName(_domain: c_int, _callback: u32, name: Out<*const c_char>) {
        name.put(c"unknown".as_ptr())
    }
    fn cuptiSubscribe(subscriber: Out<u64>, _callback: *const c_void, _data: *const c_void) {
        subscriber.put(new_handle())
    }
    fn cuptiActivityGetNumDroppedRecords(_context: u64, _stream: u32, dropped: Out<usize>) {
        dropped.put(0)
    }
    fn cuptiActivityPopExternalCorrelationId(_kind: c_int, last: Out<u64>) {
        last.offer(0);
        Ok(())
    }
    /// Time does not pass on the device.
    fn cuptiGetTimestamp(time: Out<u64>) {
        time.put(0)
    }
}

nothing! { Profiler:
    cuptiActivityDisable cuptiActivityEnable cuptiActivityEnableCudaEventDeviceTimestamps
    cuptiActivityEnableDriverApi cuptiActivityEnableRuntimeApi cuptiActivityFlushAll
    cuptiActivityPushExternalCorrelationId cuptiActivityRegisterCallbacks cuptiActivityRegisterTimestampCallback
    cuptiActivitySetAttribute cuptiEnableCallback cuptiEnableDomain cuptiFinalize cuptiUnsubscribe
}

/// The next record of a buffer: there is none.
#[unsafe(no_mangle)]
extern "C" fn cuptiActivityGetNextRecord() -> c_int {
    NO_MORE_RECORDS
}
