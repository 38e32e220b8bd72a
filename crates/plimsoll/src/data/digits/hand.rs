//! Random distortion: how one drawing differs from the table.
//!
//! It has the parameters of one drawing (slant, bends, size, position, pressure) and turns a glyph's strokes into
//! ink on a page. The shapes are in `glyphs.rs`; rendering is in `page.rs`.

use super::super::random::Stream;
use super::glyphs::{self, Glyph};
use super::page::{Dot, Page, Point, SIDE};

/// The number of line segments of each curve between two points.
const PIECES: usize = 6;
/// Nodes along each side of the distortion grid.
const NODES: usize = 4;

/// The parameters of one drawing.
pub(super) struct Hand {
    /// Displacement of the nodes of a grid laid over the glyph, row by row.
    bend: [[Point; NODES]; NODES],
    /// Column vectors of rotation × shear × stretch.
    across: Point,
    down: Point,
    /// The longer side of the digit, in pixels.
    size: f32,
    /// The centre of the digit, in pixels.
    middle: Point,
    /// Half the pen's width in pixels, at the start, middle and end of each stroke.
    radius: [f32; 3],
}

impl Hand {
    pub(super) fn new(random: &mut Stream) -> Self {
        // The amount of distortion varies between drawings.
        let unsteady = random.between(1.5, 6.0);
        let mut bend = [[[0.0; 2]; NODES]; NODES];
        for node in bend.iter_mut().flatten() {
            *node = [random.bell() * unsteady, random.bell() * unsteady];
        }
        // The tangent of half an angle gives sine and cosine by division alone (Note [Same pixels everywhere]).
        let half = 0.07 * random.bell();
        let (cosine, sine) = ((1.0 - half * half) / (1.0 + half * half), 2.0 * half / (1.0 + half * half));
        // Most handwriting slants to the right: with y down, x falls as y grows.
        let shear = -0.12 + 0.2 * random.bell();
        let wide = (1.0 + 0.16 * random.bell()).max(0.55);
        let thickness = (1.2 + 0.3 * random.bell()).clamp(0.6, 2.2);
        Self {
            bend,
            across: [cosine * wide, sine * wide],
            down: [cosine * shear - sine, sine * shear + cosine],
            size: (18.7 + 1.2 * random.bell()).clamp(14.5, 22.0),
            middle: [14.0 + 0.8 * random.bell(), 14.0 + 0.8 * random.bell()],
            radius: std::array::from_fn(|_| thickness * (1.0 + 0.12 * random.bell())),
        }
    }

    /// Writes a glyph on a page.
    pub(super) fn write(&self, glyph: Glyph, page: &mut Page, random: &mut Stream) {
        let mut path = Vec::with_capacity(glyph.len() * 14 * PIECES);
        for (number, stroke) in glyph.iter().enumerate() {
            // Each further stroke starts slightly displaced.
            let lift = if number == 0 { 0.0 } else { 2.5 };
            let off = [random.bell() * lift, random.bell() * lift];
            let bent: Vec<Point> =
                stroke.iter().map(|point| self.bent(add(point.map(f32::from), off))).collect();
            self.trace(&bent, number, &mut path);
        }
        let fit = Fit::new(&path, self.size, self.middle);
        for pair in path.windows(2).filter(|pair| pair[0].stroke == pair[1].stroke) {
            page.line(fit.dot(&pair[0]), fit.dot(&pair[1]));
        }
    }

    /// Appends the curve through a stroke's points, as line segments.
    fn trace(&self, points: &[Point], stroke: usize, path: &mut Vec<Step>) {
        let spans = points.len() - 1;
        let place = |at: f32| self.radius_at(at / spans as f32);
        path.push(Step { at: points[0], radius: place(0.0), stroke });
        for span in 0..spans {
            let (from, to) = (points[span], points[span + 1]);
            if from == to {
                continue; // a corner
            }
            let before = points[span.saturating_sub(1)];
            let after = points[(span + 2).min(spans)];
            for piece in 1..=PIECES {
                let part = piece as f32 / PIECES as f32;
                let at = catmull_rom([before, from, to, after], part);
                path.push(Step { at, radius: place(span as f32 + part), stroke });
            }
        }
    }

    /// A point of the table, distorted by the grid, slanted and rotated.
    fn bent(&self, point: Point) -> Point {
        let (column, right) = cell(point[0] / glyphs::WIDTH);
        let (row, low) = cell(point[1] / glyphs::HEIGHT);
        let mut bent = point;
        for (node_row, row_weight) in [(row, 1.0 - low), (row + 1, low)] {
            for (node_column, weight) in [(column, 1.0 - right), (column + 1, right)] {
                let node = self.bend[node_row][node_column];
                bent = add(bent, [node[0] * row_weight * weight, node[1] * row_weight * weight]);
            }
        }
        [self.across[0] * bent[0] + self.down[0] * bent[1], self.across[1] * bent[0] + self.down[1] * bent[1]]
    }

    /// The pen's radius, `part` (0 to 1) along a stroke.
    fn radius_at(&self, part: f32) -> f32 {
        let [start, middle, end] = self.radius;
        if part < 0.5 {
            start + (middle - start) * 2.0 * part
        } else {
            middle + (end - middle) * (2.0 * part - 1.0)
        }
    }
}

/// A point of the path, before it is fitted to the page.
struct Step {
    at: Point,
    radius: f32,
    stroke: usize,
}

/// Maps a path to pixels: scaled so that its longer side has a given size, its box centred.
struct Fit {
    scale: f32,
    corner: Point,
}

impl Fit {
    fn new(path: &[Step], size: f32, middle: Point) -> Self {
        let mut low = [f32::MAX; 2];
        let mut high = [f32::MIN; 2];
        for step in path {
            for axis in 0..2 {
                low[axis] = low[axis].min(step.at[axis]);
                high[axis] = high[axis].max(step.at[axis]);
            }
        }
        let scale = size / (high[0] - low[0]).max(high[1] - low[1]);
        Self {
            scale,
            corner: std::array::from_fn(|axis| middle[axis] - scale * (low[axis] + high[axis]) / 2.0),
        }
    }

    fn dot(&self, step: &Step) -> Dot {
        // A displaced digit must stay on the page.
        let inside = |x: f32| x.clamp(2.0, SIDE as f32 - 2.0);
        let [x, y] = add(self.corner, [step.at[0] * self.scale, step.at[1] * self.scale]);
        Dot { at: [inside(x), inside(y)], radius: step.radius }
    }
}

/// The grid cell of a position between 0 and 1, and the position in it, smoothed so that the distortion has no
/// creases.
fn cell(position: f32) -> (usize, f32) {
    let scaled = position.clamp(0.0, 1.0) * (NODES - 1) as f32;
    let cell = (scaled as usize).min(NODES - 2);
    let into = scaled - cell as f32;
    (cell, into * into * (3.0 - 2.0 * into))
}

/// A point on the Catmull–Rom curve between `b` and `c`, whose slope at each of them depends on its neighbours.
fn catmull_rom([a, b, c, d]: [Point; 4], t: f32) -> Point {
    std::array::from_fn(|axis| {
        let (a, b, c, d) = (a[axis], b[axis], c[axis], d[axis]);
        let cubic = 3.0 * (b - c) + d - a;
        let square = 2.0 * a - 5.0 * b + 4.0 * c - d;
        b + 0.5 * t * (c - a + t * (square + t * cubic))
    })
}

fn add(a: Point, b: Point) -> Point {
    [a[0] + b[0], a[1] + b[1]]
}
