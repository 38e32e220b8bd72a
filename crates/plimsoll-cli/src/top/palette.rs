//! The look of the screen: [`Palette`].

use ratatui::style::{Color, Modifier, Style};

/// Symbols and styles. Without colour, different shapes distinguish them.
#[derive(Clone, Copy, Default)]
pub(super) struct Palette {
    pub(super) live: Style,
    pub(super) cached: Style,
    pub(super) others: Style,
    pub(super) line: Style,
    pub(super) strong: Style,
}

impl Palette {
    /// The palette for `NO_COLOR`.
    pub(super) fn plain() -> Palette {
        let strong = Style::new().add_modifier(Modifier::BOLD);
        Palette { strong, line: strong, ..Palette::default() }
    }

    /// The default palette: the terminal's own colours.
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
