//! NPY files as NumPy writes them, in all orders and types, and one file truncated at every length.

use super::*;

fn npy(header: &str, elements: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(elements);
    bytes
}

fn dictionary(descr: &str, order: &str, shape: &str) -> String {
    format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}          \n")
}

#[test]
fn each_type_is_read_in_either_byte_order() {
    let one = |descr: &str, bytes: &[u8]| parse(&npy(&dictionary(descr, "False", "(1,)"), bytes)).unwrap();
    assert_eq!(one("<f8", &1.5f64.to_le_bytes()), HostArray::new(vec![1], vec![1.5f64]));
    assert_eq!(one(">f8", &1.5f64.to_be_bytes()), HostArray::new(vec![1], vec![1.5f64]));
    assert_eq!(one("<f4", &(-2.5f32).to_le_bytes()), HostArray::new(vec![1], vec![-2.5f32]));
    assert_eq!(one("<f2", &[0, 0x3c]), HostArray::new(vec![1], vec![f16::from_f32(1.0)]));
    assert_eq!(one("<i8", &(-3i64).to_le_bytes()), HostArray::new(vec![1], vec![-3i64]));
    assert_eq!(one(">i4", &7i32.to_be_bytes()), HostArray::new(vec![1], vec![7i32]));
    assert_eq!(one("<i2", &7i16.to_le_bytes()), HostArray::new(vec![1], vec![7i16]));
    assert_eq!(one("|i1", &[0xff]), HostArray::new(vec![1], vec![-1i16]));
    assert_eq!(one("|u1", &[0xff]), HostArray::new(vec![1], vec![255u8]));
    assert_eq!(one("<u2", &[0xff, 0xff]), HostArray::new(vec![1], vec![65_535i32]));
    assert_eq!(one("<u4", &[0xff; 4]), HostArray::new(vec![1], vec![4_294_967_295i64]));
    assert_eq!(one("|b1", &[1]), HostArray::new(vec![1], vec![true]));
}

#[test]
fn column_major_becomes_row_major_with_the_same_shape() {
    // numpy.asfortranarray([[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]])
    let bytes = [0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11];
    let array = parse(&npy(&dictionary("|u1", "True", "(2, 3, 2)"), &bytes)).unwrap();
    assert_eq!(array, HostArray::new(vec![2, 3, 2], (0..12u8).collect()));
}

#[test]
fn a_scalar_and_an_empty_array_are_read() {
    let scalar = parse(&npy(&dictionary("|u1", "False", "()"), &[9])).unwrap();
    assert_eq!(scalar, HostArray::new(vec![], vec![9u8]));
    let empty = parse(&npy(&dictionary("<f4", "True", "(0, 3)"), &[])).unwrap();
    assert_eq!(empty, HostArray::new(vec![0, 3], Vec::<f32>::new()));
}

#[test]
fn every_truncation_is_an_error() {
    let whole = npy(&dictionary("<i2", "False", "(2, 2)"), &[1, 0, 2, 0, 3, 0, 4, 0]);
    assert!(parse(&whole).is_ok());
    for length in 0..whole.len() {
        assert!(parse(&whole[..length]).is_err(), "{length} bytes");
    }
    let long = [&whole[..], &[0]].concat();
    assert!(parse(&long).unwrap_err().contains("promises 8 bytes"), "{:?}", parse(&long));
}

#[test]
fn what_cannot_be_read_is_named() {
    let refusal = |header: &str| parse(&npy(header, &[])).unwrap_err();
    assert!(refusal(&dictionary("|O", "False", "(1,)")).contains("its elements are `|O`"));
    assert!(refusal(&dictionary("<c8", "False", "(1,)")).contains("numpy's astype"));
    assert!(refusal(&dictionary("", "False", "(1,)")).contains("its elements are ``"));
    let named = "{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1,), }";
    assert!(refusal(named).contains("`[('x', '<f4')]`"));
    assert!(refusal("{'descr': '<f4', 'shape': (1,)}").contains("no 'fortran_order'"));
    assert!(refusal(&dictionary("<f4", "False", "(-1,)")).contains("'shape' of its header"));
    let huge = format!("({}, {})", usize::MAX, usize::MAX);
    assert!(refusal(&dictionary("<f4", "False", &huge)).contains("more than fit"));
    assert!(parse(b"PK\x03\x04").unwrap_err().contains("does not start with"));
}
