//! Rendering: a page of 28×28 pixels, from lines of ink to bytes.
//!
//! It draws lines with round ends; coordinates are in pixels, with y pointing down.

use super::super::random::Stream;

/// Pixels along each side.
pub(super) const SIDE: usize = 28;
/// Pixels of a page.
pub(super) const PIXELS: usize = SIDE * SIDE;

/// A point on a page or a sheet: x to the right, then y down.
pub(super) type Point = [f32; 2];

/// Ink, 0 to 1, row by row.
pub(super) struct Page([[f32; SIDE]; SIDE]);

/// The position and width of the pen.
#[derive(Clone, Copy)]
pub(super) struct Dot {
    pub(super) at: Point,
    /// Half the width, in pixels.
    pub(super) radius: f32,
}

impl Page {
    pub(super) fn blank() -> Self {
        Self([[0.0; SIDE]; SIDE])
    }

    /// Draws a line. The line's edge is one pixel wide, and a pixel's coverage is how far its centre lies inside that edge: the
    /// usual approximation of area coverage.
    pub(super) fn line(&mut self, from: Dot, to: Dot) {
        let along = [to.at[0] - from.at[0], to.at[1] - from.at[1]];
        let length_squared = (along[0] * along[0] + along[1] * along[1]).max(1e-12);
        let reach = from.radius.max(to.radius) + 0.5;
        for y in touched(from.at[1], to.at[1], reach) {
            for x in touched(from.at[0], to.at[0], reach) {
                let offset = [x as f32 + 0.5 - from.at[0], y as f32 + 0.5 - from.at[1]];
                let part = ((offset[0] * along[0] + offset[1] * along[1]) / length_squared).clamp(0.0, 1.0);
                let away = [offset[0] - part * along[0], offset[1] - part * along[1]];
                let distance = (away[0] * away[0] + away[1] * away[1]).sqrt();
                let radius = from.radius + part * (to.radius - from.radius);
                let ink = (radius + 0.5 - distance).clamp(0.0, 1.0);
                self.0[y][x] = self.0[y][x].max(ink);
            }
        }
    }

    /// Blurs, scales and adds noise to the page by random amounts, and returns bytes. Pixels without ink stay 0,
    /// as in MNIST.
    pub(super) fn develop(&self, random: &mut Stream) -> [u8; PIXELS] {
        let blur = random.between(0.0, 0.2);
        let exposure = random.between(1.0, 1.6);
        let grain = random.between(0.0, 0.2);
        let mut noise = [0; PIXELS];
        random.fill(&mut noise);
        let blurred = blurred(&blurred(&self.0, blur), blur);
        // Both passes blur along one axis and swap the axes, so the page is upright again.
        let ink = blurred.as_flattened();
        std::array::from_fn(|pixel| {
            let grain = 1.0 - grain * f32::from(noise[pixel]) / 255.0;
            ((ink[pixel] * exposure).min(1.0) * grain * 255.0 + 0.5) as u8
        })
    }
}

/// The pixels that a line between these coordinates can touch.
fn touched(from: f32, to: f32, reach: f32) -> std::ops::Range<usize> {
    // A negative float casts to 0.
    let low = (from.min(to) - reach) as usize;
    let high = (from.max(to) + reach) as usize + 1;
    low..high.min(SIDE)
}

/// Each pixel passes the fraction `part` of its value to each of its two neighbours in the row. Rows and columns are
/// swapped.
fn blurred(page: &[[f32; SIDE]; SIDE], part: f32) -> [[f32; SIDE]; SIDE] {
    let mut out = [[0.0; SIDE]; SIDE];
    for (y, row) in page.iter().enumerate() {
        for x in 0..SIDE {
            let left = if x == 0 { 0.0 } else { row[x - 1] };
            let right = if x == SIDE - 1 { 0.0 } else { row[x + 1] };
            out[x][y] = row[x] + part * (left + right - 2.0 * row[x]);
        }
    }
    out
}
