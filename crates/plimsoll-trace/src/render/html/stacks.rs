//! Stacked columns of bytes, one kind on top of another, drawn as shapes without a script: [`shapes`].

use std::fmt::{self, Write};

/// One kind of memory, in all columns.
pub(super) struct Layer {
    /// The class of the layer's colour in page.css.
    pub(super) class: String,
    /// The name of the layer, for the tooltip.
    pub(super) name: String,
    /// Bytes, column by column.
    pub(super) bytes: Vec<u64>,
}

/// Draws the layers from the bottom up, each as a path. A column is 1 wide. Heights are measured from the top, in
/// hundredths of the axis's range.
pub(super) fn shapes(out: &mut String, layers: &[Layer], (least, most): (u64, u64)) -> fmt::Result {
    let span = most.saturating_sub(least).max(1) as f64;
    let height = |bytes: u64| 100.0 - 100.0 * bytes.saturating_sub(least) as f64 / span;
    let columns = layers.iter().map(|layer| layer.bytes.len()).max().unwrap_or(0);
    let mut below = vec![0_u64; columns];
    for layer in layers {
        let floor = below.clone();
        for (sum, bytes) in below.iter_mut().zip(&layer.bytes) {
            *sum = sum.saturating_add(*bytes);
        }
        write!(
            out,
            "<path class=\"{}\" d=\"M0 {:.2}",
            layer.class,
            height(floor.first().copied().unwrap_or(0))
        )?;
        for (column, &bytes) in below.iter().enumerate() {
            // Adjacent columns of equal height are drawn as one.
            if below.get(column + 1) != Some(&bytes) {
                write!(out, "V{:.2}H{}", height(bytes), column + 1)?;
            }
        }
        for (column, &bytes) in floor.iter().enumerate().rev() {
            if column == 0 || floor[column - 1] != bytes {
                write!(out, "V{:.2}H{column}", height(bytes))?;
            }
        }
        if layer.name.is_empty() {
            out.push_str("Z\"/>");
        } else {
            write!(out, "Z\"><title>{}</title></path>", layer.name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_stand_on_one_another_and_columns_alike_are_one() {
        let layer = |name: &str, bytes: &[u64]| Layer {
            class: name.into(),
            name: String::new(),
            bytes: bytes.into(),
        };
        let mut out = String::new();
        shapes(&mut out, &[layer("a", &[10, 10, 10]), layer("b", &[0, 40, 90])], (0, 100)).unwrap();
        assert_eq!(
            out,
            "<path class=\"a\" d=\"M0 100.00V90.00H3V100.00H0Z\"/>\
             <path class=\"b\" d=\"M0 90.00V90.00H1V50.00H2V0.00H3V90.00H0Z\"/>"
        );
    }
}
