//! The host's kernels for a device whose memory the host cannot address: [`Launch::run_on_host`].

use super::{readable, writable};
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::view::{Launch, View};

/// The bytes of a view in host memory. Words of 64 bits, so that elements of every type are aligned.
struct Copied<'a> {
    words: Vec<u64>,
    of: View<'a>,
}

impl<'a> Copied<'a> {
    fn new(of: View<'a>) -> Copied<'a> {
        Copied { words: vec![0; of.span_bytes().div_ceil(8) as usize], of }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let bytes = self.of.span_bytes() as usize;
        &mut bytemuck::cast_slice_mut(&mut self.words)[..bytes]
    }

    fn filled(of: View<'a>, read: &mut impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<Copied<'a>> {
        let mut copied = Copied::new(of);
        if of.span_bytes() > 0 {
            read(of.first_address(), copied.bytes())?;
        }
        Ok(copied)
    }

    fn view(&mut self) -> View<'a> {
        self.of.moved(self.words.as_mut_ptr().expose_provenance() as u64)
    }
}

fn copies<'a>(
    views: &[View<'a>],
    read: &mut impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<Vec<Copied<'a>>> {
    views.iter().map(|view| Copied::filled(*view, read)).collect()
}

impl Launch<'_> {
    /// Runs the host's kernel on copies of the tensors, for a device that has no kernel of its own for an operator. `read` copies
    /// from an address of the device into host memory, and `write` copies back; both return when the copy is done.
    ///
    /// # Errors
    /// The errors of the kernel, such as an operator without a kernel for the host, and of `read` and `write`.
    pub fn run_on_host(
        &self,
        kernel: &dyn Kernel,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
        mut write: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        // An output may have gaps, whose bytes belong to other tensors, and a kernel that works in place also reads it.
        let (mut ins, mut outs) = (copies(self.ins, &mut read)?, copies(self.outs, &mut read)?);
        let mut scratch = self.scratch.map(Copied::new);
        let in_views: Vec<View<'_>> = ins.iter_mut().map(Copied::view).collect();
        let out_views: Vec<View<'_>> = outs.iter_mut().map(Copied::view).collect();
        let scratch_view = scratch.as_mut().map(Copied::view);
        kernel.cpu(CpuCall {
            ins: in_views.iter().map(readable).collect(),
            outs: out_views.iter().map(writable).collect(),
            scratch: scratch_view.as_ref().map(writable),
        })?;
        for out in outs.iter_mut().filter(|out| out.of.span_bytes() > 0) {
            write(out.of.first_address(), out.bytes())?;
        }
        Ok(())
    }
}
