//! nvJPEG: `torchvision.io.decode_jpeg` on the GPU. An image's size is read from its header on the host, so that
//! tensors are as large as on a GPU. Nothing is decoded, and an encoded image is empty. The library's own device
//! memory is undocumented.

use std::ffi::{c_int, c_uint, c_void};

use crate::argument::Out;
use crate::call::{calls, makers, nothing};
use crate::error::Failure;
use crate::notice;
use crate::stream::work;

/// The maximum number of components of an image.
const COMPONENTS: usize = 4;

/// An image's size and number of components.
#[derive(Debug, PartialEq, Eq)]
struct Frame {
    components: u8,
    width: c_int,
    height: c_int,
}

calls! { Jpeg:
    fn nvjpegCreateEx(
        _backend: c_int, _device: *const c_void, _pinned: *const c_void, _flags: c_uint, handle: Out<u64>,
    ) {
        notice::assume("nvJPEG", "is assumed to need no memory of its own");
        handle.put(crate::call::new_handle())
    }
    fn nvjpegGetImageInfo(
        _handle: u64, data: Out<u8>, bytes: usize, components: Out<c_int>, subsampling: Out<c_int>,
        widths: Out<[c_int; COMPONENTS]>, heights: Out<[c_int; COMPONENTS]>,
    ) {
        let frame = frame(&data.get_bytes(bytes)?).ok_or(Failure::InvalidValue)?;
        components.put(c_int::from(frame.components))?;
        // Grey, or colour channels at full resolution.
        subsampling.put(if frame.components == 1 { 6 } else { 0 })?;
        let each = |size| std::array::from_fn(|it| if it < usize::from(frame.components) { size } else { 0 });
        widths.put(each(frame.width))?;
        heights.put(each(frame.height))
    }
    fn nvjpegDecodeBatchedSupported(_handle: u64, _stream: u64, supported: Out<c_int>) {
        // Zero means yes.
        supported.put(0)
    }
    fn nvjpegEncodeRetrieveBitstream(_handle: u64, _state: u64, _data: *const u8, length: Out<usize>, _stream: u64) {
        length.put(0)
    }
    fn nvjpegEncodeRetrieveBitstreamDevice(
        _handle: u64, _state: u64, _data: *const u8, length: Out<usize>, _stream: u64,
    ) {
        length.put(0)
    }
}

makers! { Jpeg: nvjpegCreateSimple }

/// Defines exported functions that create an opaque object: the second argument receives its handle.
macro_rules! second {
    ($($name:ident)*) => {
        calls! { Jpeg: $(
            fn $name(_handle: u64, object: Out<u64>) {
                object.put(crate::call::new_handle())
            }
        )* }
    };
}

second! {
    nvjpegJpegStateCreate nvjpegDecodeParamsCreate nvjpegJpegStreamCreate nvjpegEncoderStateCreate
    nvjpegEncoderParamsCreate
}

calls! { Jpeg:
    fn nvjpegBufferDeviceCreate(_handle: u64, _allocator: *const c_void, buffer: Out<u64>) {
        buffer.put(crate::call::new_handle())
    }
    fn nvjpegBufferPinnedCreate(_handle: u64, _allocator: *const c_void, buffer: Out<u64>) {
        buffer.put(crate::call::new_handle())
    }
    fn nvjpegDecoderCreate(_handle: u64, _backend: c_int, decoder: Out<u64>) {
        decoder.put(crate::call::new_handle())
    }
    fn nvjpegDecoderStateCreate(_handle: u64, _decoder: u64, state: Out<u64>) {
        state.put(crate::call::new_handle())
    }
}

nothing! { Jpeg:
    nvjpegDecodeBatchedInitialize nvjpegDecodeJpegHost nvjpegDecodeJpegTransferToDevice
    nvjpegDecodeParamsSetOutputFormat nvjpegEncoderParamsSetQuality nvjpegEncoderParamsSetSamplingFactors
    nvjpegJpegStreamParse nvjpegJpegStreamParseHeader nvjpegStateAttachDeviceBuffer nvjpegStateAttachPinnedBuffer
    nvjpegDestroy nvjpegJpegStateDestroy nvjpegDecodeParamsDestroy nvjpegJpegStreamDestroy nvjpegDecoderDestroy
    nvjpegBufferDeviceDestroy nvjpegBufferPinnedDestroy nvjpegEncoderStateDestroy nvjpegEncoderParamsDestroy
}

work! { Jpeg: nvjpegDecode nvjpegDecodeBatched nvjpegDecodeJpegDevice nvjpegDecodeJpeg nvjpegEncodeImage }

/// The frame header of a JPEG file: the first marker from `FFC0` to `FFCF` except `C4`, `C8` and `CC`.
fn frame(data: &[u8]) -> Option<Frame> {
    let mut rest = data.strip_prefix(&[0xff, 0xd8])?;
    loop {
        let (&[0xff, marker], after) = rest.split_first_chunk::<2>()? else { return None };
        // Fill bytes may precede a marker.
        if marker == 0xff {
            rest = &rest[1..];
            continue;
        }
        let (length, _) = after.split_first_chunk::<2>()?;
        let segment = after.get(2..usize::from(u16::from_be_bytes(*length)))?;
        if matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc) {
            let &[_, high, low, wide, narrow, components, ..] = segment else { return None };
            let [height, width] =
                [[high, low], [wide, narrow]].map(|pair| c_int::from(u16::from_be_bytes(pair)));
            return (usize::from(components) <= COMPONENTS).then_some(Frame { components, width, height });
        }
        rest = &after[2 + segment.len()..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_picture_is_read_from_its_frame_header() {
        let comment = [0xff, 0xfe, 0, 4, 1, 2];
        let header = [0xff, 0xc2, 0, 17, 8, 1, 0, 2, 128, 3, 1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1];
        let picture = [&[0xff, 0xd8][..], &comment, &[0xff], &header, &[0xff, 0xda]].concat();
        assert_eq!(frame(&picture), Some(Frame { components: 3, width: 640, height: 256 }));
        for cut in 0..picture.len() - 12 {
            assert_eq!(frame(&picture[..cut]), None, "{cut}");
        }
        assert_eq!(frame(b"\x89PNG"), None);
    }
}
