//! cuFFT: plans that compute nothing. How much workspace each would ask for is not documented: they are taken
//! to need none, which is told (`notice.rs`).

use std::ffi::c_int;

use crate::argument::Out;
use crate::call::{calls, new_handle, nothing, work};
use crate::notice;

calls! { Fft:
    /// A plan's handle is a small number.
    fn cufftCreate(plan: Out<c_int>) {
        plan.put(c_int::try_from(new_handle() % (1 << 30)).unwrap_or(1))
    }
    /// Rank, sizes, and both layouts come before what is asked for: how many bytes of workspace.
    fn cufftXtMakePlanMany(
        _plan: c_int, _rank: c_int, _sizes: u64, _in: u64, _in_stride: u64, _in_distance: u64,
        _in_kind: c_int,
        _out: u64, _out_stride: u64, _out_distance: u64, _out_kind: c_int, _batch: u64, bytes: Out<usize>,
    ) {
        notice::assume("cuFFT", "is taken to need no workspace: on a card it needs some");
        bytes.put(0)
    }
}

nothing! { Fft: cufftDestroy cufftSetAutoAllocation cufftSetStream cufftSetWorkArea }

work! { Fft: cufftXtExec }
