//! How the screen looks: [`Palette`].

use ratatui::style::{Color, Modifier, Style};

/// How things look; without colour, shapes tell them apart.
#[derive(Clone, Copy, Default)]
pub(super) struct Palette {
    pub(super) live: Style,
    pub(super) cached: Style,
    pub(super) others: Style,
    pub(super) line: Style,
    pub(super) strong: Style,
}

impl Palette {
    /// For `NO_COLOR`.
    pub(super) fn plain() -> Palette {
        let strong = Style::new().add_modifier(Modifier::BOLD);
        Palette { strong, line: strong, ..Palette::default() }
    }

    /// For everybody else: the terminal's own colours.
    pub(super) fn coloured() -> Palette {
        let strong = Style::new().add_modifier(Modifier::BOLD);
        Palette {
            live: Style::new().fg(Color::Cyan),
            cached: Style::new().fg(Color::Blue),
            others: Style::new().fg(Color::Magenta),
            line: strong.fg(Color::Red),
            strong,
        }
    }
}
