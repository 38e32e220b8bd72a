//! Folders of small images, written byte by byte.

use std::fs;
use std::path::Path;

/// A PNG of `side` × `side` pixels: grey (`channels` 1) or colour (3), without compression.
pub(crate) fn png(side: u32, channels: usize, pixel: impl Fn(u32, u32) -> u8) -> Vec<u8> {
    let mut rows = Vec::new();
    for y in 0..side {
        rows.push(0);
        (0..side).for_each(|x| rows.extend(std::iter::repeat_n(pixel(y, x), channels)));
    }
    let (mut a, mut b) = (1u32, 0u32);
    for &byte in &rows {
        a = (a + u32::from(byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    let len = rows.len() as u16;
    let stored =
        [&[0x78, 1, 1][..], &len.to_le_bytes(), &(!len).to_le_bytes(), &rows, &(b << 16 | a).to_be_bytes()];
    let colour = if channels == 3 { 2 } else { 0 };
    let header = [&side.to_be_bytes()[..], &side.to_be_bytes(), &[8, colour, 0, 0, 0]].concat();
    let signature = b"\x89PNG\r\n\x1a\n".to_vec();
    [signature, chunk(b"IHDR", &header), chunk(b"IDAT", &stored.concat()), chunk(b"IEND", &[])].concat()
}

fn chunk(name: &[u8], data: &[u8]) -> Vec<u8> {
    let body = [name, data].concat();
    let crc = body.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    });
    [&(data.len() as u32).to_be_bytes()[..], &body, &(!crc).to_be_bytes()].concat()
}

pub(crate) fn put(folder: &Path, name: &str, bytes: &[u8]) {
    fs::create_dir_all(folder).expect("a folder");
    fs::write(folder.join(name), bytes).expect("a file");
}

/// Images with a bright left half and images with a bright upper half, of several sizes, some of them grey.
pub(crate) fn stripes(folder: &Path, count: u32) {
    for i in 0..count {
        let (side, channels) = (10 + i % 5, if i % 3 == 0 { 1 } else { 3 });
        let shade = move |is_bright: bool| if is_bright { 200 + (i % 50) as u8 } else { (i % 50) as u8 };
        put(&folder.join("left"), &format!("{i}.png"), &png(side, channels, |_, x| shade(x < side / 2)));
        put(&folder.join("upper"), &format!("{i}.PNG"), &png(side, channels, |y, _| shade(y < side / 2)));
    }
}
