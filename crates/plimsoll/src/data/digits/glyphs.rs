//! The shapes of the ten digits, each in a few common ways of writing it.
//!
//! A glyph consists of strokes. A stroke is a list of points, in the order of the pen, through which a smooth
//! curve is drawn. A point that is listed twice is a corner. x grows to the right, y grows down; a glyph is
//! about [`WIDTH`] wide and [`HEIGHT`] high. The hand (`hand.rs`) fits, slants and bends it, so only
//! proportions count here. After a change, look at a sheet of drawings: the numbers do not show whether a 7
//! looks like a 7.

use super::super::random::Stream;

/// One way to write a digit.
pub(super) type Glyph = &'static [Stroke];
/// Points of one stroke, pen down to pen up; each is x, then y.
pub(super) type Stroke = &'static [[i8; 2]];

/// Width of a typical glyph, in the table's units.
pub(super) const WIDTH: f32 = 60.0;
/// Height of a glyph, in the table's units.
pub(super) const HEIGHT: f32 = 100.0;

/// Chooses one of the ways to write a digit; the first is twice as likely as each other one.
///
/// # Panics
/// If `digit` is above 9.
pub(super) fn choose(digit: u8, random: &mut Stream) -> Glyph {
    let ways = GLYPHS[usize::from(digit)];
    ways[random.below(ways.len() + 1) % ways.len()]
}

// Each line has one stroke, or half a stroke that is too long for a line; rustfmt would put each point on a separate line.
#[rustfmt::skip]
static GLYPHS: [&[Glyph]; 10] = [
    &[ // 0: round
        &[&[[33, 2], [15, 11], [4, 34], [3, 62], [12, 88], [30, 98], [48, 88], [57, 62], [55, 34], [46, 10], [31, 2]]],
        // not quite closed, the start inside
        &[&[[42, 14], [30, 6], [12, 20], [2, 50], [10, 84], [30, 98], [52, 84], [60, 52], [52, 18], [34, 4]]],
        // narrow, the ends crossing at the top
        &[&[[40, 6], [24, 2], [12, 22], [7, 52], [12, 84], [26, 98], [40, 88], [48, 58], [45, 24], [32, 6], [22, 10]]],
    ],
    &[ // 1: a bar
        &[&[[30, 0], [30, 50], [30, 100]]],
        // a bent bar
        &[&[[32, 0], [29, 34], [29, 68], [31, 100]]],
        // with a flag
        &[&[[14, 24], [24, 14], [33, 0], [33, 0], [32, 50], [31, 100]]],
        // with a flag and a foot
        &[&[[12, 22], [24, 12], [32, 0], [32, 0], [32, 50], [31, 98]],
          &[[12, 99], [31, 98], [51, 99]]],
    ],
    &[ // 2: a loop at the foot
        &[&[[6, 20], [18, 4], [36, 0], [51, 11], [50, 32], [38, 58], [22, 84],
            [9, 96], [2, 88], [8, 76], [22, 79], [38, 92], [58, 98]]],
        // a corner at the foot
        &[&[[5, 22], [14, 6], [32, 0], [49, 8], [53, 26], [44, 48], [26, 72], [5, 96], [5, 96], [30, 95], [59, 97]]],
        // a flat loop, and a tail that swings up
        &[&[[10, 16], [24, 3], [42, 4], [50, 18], [44, 40], [28, 66], [12, 88],
            [5, 92], [6, 84], [18, 82], [34, 92], [48, 96], [60, 88]]],
        // like a Z with a round head
        &[&[[4, 12], [24, 2], [46, 6], [50, 24], [30, 58], [4, 94], [4, 94], [30, 98], [58, 92]]],
    ],
    &[ // 3: round
        &[&[[5, 13], [20, 1], [40, 3], [50, 19], [42, 37], [22, 46], [22, 46],
            [44, 52], [55, 69], [49, 89], [30, 99], [11, 96], [1, 84]]],
        // a flat top and a slanting middle
        &[&[[6, 4], [28, 3], [52, 2], [52, 2], [40, 22], [26, 40], [26, 40],
            [44, 44], [55, 62], [50, 86], [30, 99], [4, 92]]],
        // a small loop in the middle
        &[&[[8, 14], [24, 1], [44, 6], [47, 24], [36, 42], [22, 48], [20, 42],
            [32, 42], [50, 54], [54, 76], [40, 96], [18, 98], [4, 86]]],
    ],
    &[ // 4: open at the top
        &[&[[12, 2], [8, 28], [4, 52], [4, 52], [30, 53], [56, 48]],
          &[[50, 4], [47, 50], [44, 100]]],
        // closed, drawn without lifting
        &[&[[42, 100], [43, 50], [44, 0], [44, 0], [24, 32], [2, 66], [2, 66], [30, 66], [62, 64]]],
        // open, with a round bowl
        &[&[[12, 4], [6, 26], [6, 46], [20, 56], [40, 50], [52, 36]],
          &[[52, 2], [50, 40], [45, 100]]],
        // steep arms that nearly meet
        &[&[[28, 0], [16, 28], [4, 56], [4, 56], [30, 57], [60, 54]],
          &[[42, 16], [40, 56], [37, 100]]],
    ],
    &[ // 5: the hat is a separate stroke
        &[&[[15, 6], [12, 24], [9, 44], [9, 44], [28, 40], [48, 50], [53, 70], [42, 92], [20, 99], [2, 92]],
          &[[15, 6], [36, 3], [58, 2]]],
        // in one stroke
        &[&[[54, 2], [34, 3], [15, 4], [15, 4], [12, 22], [8, 43], [8, 43],
            [24, 37], [44, 43], [54, 63], [46, 88], [24, 99], [2, 90]]],
        // like an S
        &[&[[54, 4], [34, 2], [18, 10], [14, 28], [22, 42], [40, 52], [47, 70], [38, 92], [18, 99], [2, 90]]],
    ],
    &[ // 6: a curved back
        &[&[[46, 3], [27, 14], [11, 40], [3, 70], [12, 93], [32, 99], [50, 86], [49, 64], [33, 54], [14, 62], [5, 78]]],
        // a straight back
        &[&[[34, 0], [18, 36], [8, 70], [12, 92], [28, 99], [45, 88], [46, 68], [32, 58], [16, 66], [8, 80]]],
        // a small low loop
        &[&[[30, 0], [12, 24], [3, 56], [6, 86], [22, 99], [42, 94], [50, 78], [40, 66], [22, 70], [8, 86]]],
    ],
    &[ // 7: plain
        &[&[[3, 6], [30, 4], [56, 3], [56, 3], [46, 34], [34, 66], [26, 100]]],
        // with a bar
        &[&[[4, 5], [30, 4], [56, 3], [56, 3], [42, 36], [28, 68], [20, 100]],
          &[[16, 50], [34, 48], [52, 46]]],
        // with a serif
        &[&[[4, 22], [5, 5], [5, 5], [30, 4], [55, 4], [55, 4], [44, 40], [34, 70], [30, 100]]],
        // round at the top
        &[&[[3, 18], [12, 5], [30, 3], [50, 4], [52, 18], [42, 46], [32, 72], [26, 100]]],
    ],
    &[ // 8: an S that returns to its start
        &[&[[50, 14], [34, 1], [15, 8], [12, 26], [28, 44], [48, 62], [51, 84],
            [33, 99], [12, 92], [7, 74], [20, 56], [40, 40], [52, 22], [46, 8]]],
        // two rings
        &[&[[32, 46], [15, 38], [14, 14], [30, 1], [46, 13], [46, 36], [30, 46]],
          &[[30, 46], [10, 60], [8, 86], [30, 99], [52, 87], [51, 60], [32, 46]]],
        // narrow, open at the top
        &[&[[46, 8], [34, 2], [20, 10], [18, 28], [30, 46], [42, 66], [42, 88],
            [28, 99], [14, 88], [16, 66], [32, 46], [46, 24], [47, 6]]],
    ],
    &[ // 9: a straight stem
        &[&[[50, 14], [34, 2], [14, 10], [6, 30], [15, 48], [34, 46], [48, 28], [51, 8], [51, 8], [50, 52], [46, 100]]],
        // a tail that curls back
        &[&[[51, 16], [36, 2], [15, 9], [6, 28], [15, 46], [34, 46], [49, 28],
            [52, 14], [53, 46], [47, 78], [30, 98], [10, 92]]],
        // a slanting stem
        &[&[[48, 12], [32, 1], [14, 12], [8, 30], [18, 44], [36, 38], [48, 20], [50, 10], [44, 44], [34, 72], [24, 100]]],
    ],
];
