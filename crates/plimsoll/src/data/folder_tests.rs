//! Folders of images as users have them: odd sizes, grey, transparent, nested, damaged, empty.

use std::io::Cursor;

use image::{DynamicImage, GrayImage, ImageFormat, Luma, Rgb, RgbImage, Rgba, RgbaImage};

use super::super::idx::tests::Scratch;
use super::super::{DataLoader, HostBatch};
use super::*;

fn encoded(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.into().write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

fn red(width: u32, height: u32) -> RgbImage {
    RgbImage::from_pixel(width, height, Rgb([255, 0, 0]))
}

impl Scratch {
    fn image(&self, name: &str, bytes: &[u8]) -> PathBuf {
        fs::create_dir_all(self.0.join(name).parent().unwrap()).unwrap();
        self.put(name, bytes)
    }
}

fn plain(side: usize) -> ImageOptions {
    ImageOptions { side, normalize: Normalize::NONE, ..ImageOptions::default() }
}

fn all(data: Arc<dyn Dataset>) -> HostBatch {
    let len = data.len();
    DataLoader::new(data, len).unwrap().epoch(0).next().unwrap().unwrap()
}

#[test]
fn classes_are_the_sorted_folders_and_files_come_in_torchvisions_order() {
    let scratch = Scratch::folder("classes");
    let png = encoded(red(4, 4), ImageFormat::Png);
    let names =
        ["dog/b.png", "dog/a.PNG", "Cat/x/deep/1.jpeg", "Cat/9.jpg", "ant/1.png", "dog/notes.txt", "top.png"];
    for name in names {
        scratch.image(name, &png);
    }
    let folder = ImageFolder::open(&scratch.0, plain(2)).unwrap();
    assert_eq!(folder.classes(), ["Cat", "ant", "dog"]);
    let relative = |(path, label): &(PathBuf, usize)| {
        (path.strip_prefix(&scratch.0).unwrap().to_string_lossy().into_owned(), *label)
    };
    let files: Vec<_> = folder.files().iter().map(relative).collect();
    let expected =
        [("Cat/9.jpg", 0), ("Cat/x/deep/1.jpeg", 0), ("ant/1.png", 1), ("dog/a.PNG", 2), ("dog/b.png", 2)];
    assert_eq!(files, expected.map(|(name, label)| (name.to_owned(), label)));
    assert_eq!(folder.other_files(), 1);
    let batch = all(Arc::new(folder));
    assert_eq!(batch.array("labels").unwrap().as_slice(), Some(&[0i64, 0, 1, 2, 2][..]));
    assert_eq!(batch.array("images").unwrap().shape, [5, 3, 2, 2]);
}

#[test]
fn grey_transparent_and_colour_images_become_three_channels() {
    let scratch = Scratch::folder("channels");
    scratch.image("a/1.png", &encoded(GrayImage::from_pixel(2, 2, Luma([51])), ImageFormat::Png));
    scratch.image("a/2.png", &encoded(RgbaImage::from_pixel(2, 2, Rgba([255, 102, 0, 0])), ImageFormat::Png));
    scratch.image("a/3.jpg", &encoded(GrayImage::from_pixel(9, 5, Luma([128])), ImageFormat::Jpeg));
    let batch = all(Arc::new(ImageFolder::open(&scratch.0, plain(1)).unwrap()));
    let pixels = batch.array("images").unwrap().as_slice::<f32>().unwrap();
    assert_eq!(pixels[..6], [0.2, 0.2, 0.2, 1.0, 0.4, 0.0]);
    assert!(pixels[6..].iter().all(|pixel| (pixel - 128.0 / 255.0).abs() < 0.01), "{pixels:?}");
}

#[test]
fn odd_sizes_are_resized_by_the_shorter_side_and_cropped_at_the_centre() {
    let scratch = Scratch::folder("sizes");
    // 8 columns, 4 rows; the outer quarters are black, the centre is white.
    let wide = RgbImage::from_fn(8, 4, |x, _| Rgb([if (2..6).contains(&x) { 255 } else { 0 }; 3]));
    let path = scratch.image("a/1.png", &encoded(wide, ImageFormat::Png));
    assert!(picture(&path, 4, Fit::Crop).unwrap().iter().all(|&pixel| pixel == 255));
    let stretched = picture(&path, 4, Fit::Stretch).unwrap();
    assert!(stretched[0] < 40 && stretched[5] > 215 && stretched[10] < 40, "{stretched:?}");
    assert_eq!(picture(&path, 4, Fit::CropFrom(2)).unwrap(), picture(&path, 4, Fit::Crop).unwrap());
    for (width, height) in [(1, 1), (1, 300), (7, 3), (333, 500)] {
        let path = scratch.image("a/odd.png", &encoded(red(width, height), ImageFormat::Png));
        for fit in [Fit::Crop, Fit::CropFrom(12), Fit::Stretch] {
            let pixels = picture(&path, 10, fit).unwrap();
            assert_eq!(pixels, [255, 0, 0].repeat(100), "{width} × {height} {fit:?}");
        }
    }
}

/// The pixels of `Compose([Resize(5), CenterCrop(5)])` on a PIL image, with torchvision for PyTorch 2.15. PIL rounds to integers
/// between the horizontal and the vertical pass, so some pixels differ by one.
#[test]
fn a_resized_image_is_torchvisions_to_one_step() {
    const WIDE: [u8; 75] = [
        41, 3, 33, 72, 5, 62, 105, 7, 89, 138, 9, 120, 169, 11, 146, 49, 10, 19, 80, 17, 76, 113, 26, 78,
        146, 34, 129, 177, 42, 140, 58, 18, 72, 89, 33, 38, 122, 48, 41, 155, 63, 141, 186, 78, 190, 67, 27,
        77, 98, 48, 38, 131, 71, 20, 164, 93, 152, 195, 115, 201, 75, 34, 113, 106, 60, 113, 139, 89, 112,
        172, 118, 113, 203, 145, 113,
    ];
    const SMALL: [u8; 75] = [
        0, 0, 0, 7, 0, 6, 17, 0, 15, 27, 0, 24, 34, 0, 30, 3, 0, 8, 10, 1, 8, 20, 1, 8, 30, 2, 26, 37, 2, 38,
        6, 0, 18, 13, 1, 14, 23, 2, 8, 33, 4, 25, 40, 5, 37, 9, 0, 27, 16, 2, 31, 26, 4, 37, 36, 5, 20, 43,
        7, 8, 13, 0, 38, 20, 2, 38, 30, 5, 38, 40, 8, 20, 47, 10, 8,
    ];
    let scratch = Scratch::folder("torchvision");
    for (width, height, expected) in [(13, 9, WIDE), (3, 4, SMALL)] {
        let pixel =
            |x: u32, y: u32| Rgb([x * 17 + y * 5, x * y * 2, (x ^ y) * 15].map(|value| (value % 256) as u8));
        let path =
            scratch.image("a/1.png", &encoded(RgbImage::from_fn(width, height, pixel), ImageFormat::Png));
        let pixels = picture(&path, 5, Fit::Crop).unwrap();
        let furthest = pixels.iter().zip(expected).map(|(&pixel, expected)| pixel.abs_diff(expected)).max();
        assert!(furthest <= Some(1), "{width} × {height}: {pixels:?}");
    }
}

#[test]
fn pixels_are_normalised_by_channel() {
    let scratch = Scratch::folder("normalised-rgb");
    scratch.image("a/1.png", &encoded(red(3, 3), ImageFormat::Png));
    let options = ImageOptions { side: 1, ..ImageOptions::default() };
    let batch = all(Arc::new(ImageFolder::open(&scratch.0, options).unwrap()));
    let expected = [(1.0 - 0.485) / 0.229, (0.0 - 0.456) / 0.224, (0.0 - 0.406) / 0.225f32];
    assert_eq!(batch.array("images").unwrap().as_slice(), Some(&expected[..]));
}

#[test]
fn a_damaged_file_is_an_error_that_names_it_or_is_skipped_and_counted() {
    let scratch = Scratch::folder("damaged");
    let noise =
        RgbImage::from_fn(64, 64, |x, y| Rgb([(x * 37 + y * 91) as u8, (x * y) as u8, (x ^ y) as u8]));
    let jpeg = encoded(noise.clone(), ImageFormat::Jpeg);
    let png = encoded(noise, ImageFormat::Png);
    scratch.image("a/good.jpg", &jpeg);
    scratch.image("b/good.png", &png);
    for (name, bytes) in [
        ("a/cut.jpg", &jpeg[..jpeg.len() / 2]),
        ("a/cut2.jpg", &jpeg[..jpeg.len() - 2]),
        ("b/cut.png", &png[..png.len() / 2]),
        ("b/empty.png", &[][..]),
        ("b/page.jpg", &b"<html>404</html>"[..]),
        ("b/webp.png", &b"RIFF\x10\0\0\0WEBPVP8 "[..]),
    ] {
        let path = scratch.image(name, bytes);
        let message = picture(&path, 8, Fit::Crop).unwrap_err().to_string();
        assert!(message.starts_with("cannot decode the image ") && message.contains(name), "{message}");
    }
    let strict = Arc::new(ImageFolder::open(&scratch.0, plain(8)).unwrap());
    let loader = DataLoader::new(strict, 2).unwrap().workers(1);
    let message = loader.epoch(0).next().unwrap().unwrap_err().to_string();
    assert!(message.contains("batch 0, sample 0: cannot decode") && message.contains("cut.jpg"), "{message}");

    let options = ImageOptions { damaged: Damaged::Skip, ..plain(8) };
    let lenient = ImageFolder::open(&scratch.0, options).unwrap();
    assert_eq!((lenient.len(), lenient.skipped().len()), (2, 6));
    assert_eq!(all(Arc::new(lenient)).samples, 2);
}

#[test]
fn a_folder_without_classes_or_a_class_without_images_is_an_error() {
    let scratch = Scratch::folder("empty-class");
    let refusal = |damaged| {
        let options = ImageOptions { damaged, ..plain(8) };
        ImageFolder::open(&scratch.0, options).unwrap_err().to_string()
    };
    assert!(refusal(Damaged::Error).contains("no classes in"));
    scratch.image("a/1.png", &encoded(red(2, 2), ImageFormat::Png));
    scratch.image("b/1.gif", b"GIF89a");
    let message = refusal(Damaged::Error);
    assert!(message.contains("no images of class") && message.contains("1 of other kinds"), "{message}");
    scratch.image("b/1.png", b"no image");
    let message = refusal(Damaged::Skip);
    assert!(message.contains("1 damaged ones and 1 of other kinds"), "{message}");
    assert!(
        ImageFolder::open(&scratch.0.join("none"), plain(8))
            .unwrap_err()
            .to_string()
            .starts_with("cannot read")
    );
    assert!(ImageFolder::open(&scratch.0, plain(0)).is_err());
}

#[test]
fn parts_are_folders_or_a_random_tenth() {
    let scratch = Scratch::folder("parts");
    let png = encoded(red(2, 2), ImageFormat::Png);
    for number in 0..30 {
        scratch.image(&format!("whole/{}/{number:02}.png", ["a", "b"][number % 2]), &png);
    }
    let whole = scratch.0.join("whole");
    let labels = |data: &Arc<dyn Dataset>| {
        let mut labels = all(Arc::clone(data)).array("labels").unwrap().as_slice::<i64>().unwrap().to_vec();
        labels.sort_unstable();
        labels
    };
    let (folder, split) = ImageFolder::open_parts(&whole, plain(2), 1).unwrap();
    assert_eq!((folder.classes().len(), split.train.len(), split.test.len()), (2, 27, 3));
    assert_eq!([labels(&split.train), labels(&split.test)].concat().iter().sum::<i64>(), 15);

    for (name, count) in [("train/a", 3), ("train/b", 2), ("val/a", 1), ("val/b", 1)] {
        for number in 0..count {
            scratch.image(&format!("two/{name}/{number}.png"), &png);
        }
    }
    let two = scratch.0.join("two");
    let (_, split) = ImageFolder::open_parts(&two, plain(2), 1).unwrap();
    assert_eq!((labels(&split.train), labels(&split.test)), (vec![0, 0, 0, 1, 1], vec![0, 1]));
    scratch.image("two/val/c/1.png", &png);
    let message = ImageFolder::open_parts(&two, plain(2), 1).map(|_| ()).unwrap_err().to_string();
    assert!(message.starts_with("class `c` is in only one of"), "{message}");
}
