//! Tests of the cells of a screen, and of the effect of keys.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::*;
use crate::top::text::tests::sample;

fn view(palette: Palette) -> (View, Instant) {
    let now = Instant::now();
    (View::new(vec![sample()], false, palette, now), now)
}

/// The lines that a view draws.
fn drawn(view: &View, now: Instant, [width, height]: [u16; 2]) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view.draw(frame, now)).unwrap();
    let cells = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| cells[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned()).collect()
}

fn key(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}

/// A screen of 80 by 24 cells.
const SCREEN: &str = "\
\u{20}process 4711 on cpu: plimsoll train mnist
╭ waterline ───────────╮╭ The limit of 64.00 MiB ──────────────────────────────╮
│───────────⊖──────────││live                 22.00 MiB   34.4 %  █████        │
│                      ││cached               18.00 MiB   28.1 %  ▒▒▒▒         │
│                      ││others                 0 bytes    0.0 %               │
│                      ││free                 24.00 MiB   37.5 %  ·····        │
│                      ││peaks: 36.00 MiB live, 42.00 MiB reserved             │
│                      │╰──────────────────────────────────────────────────────╯
│▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│╭ Live, by category ───────────────────────────────────╮
│▒▒▒ peak 36.00 MiB ▒▒▒││parameters            4.00 MiB   18.2 %  ███          │
│▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒││buffers                0 bytes    0.0 %               │
│▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒││gradients              0 bytes    0.0 %               │
│▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆││optimizer state       8.00 MiB   36.4 %  █████        │
│██████████████████████││activations          10.00 MiB   45.5 %  ██████       │
│██████████████████████││temporaries            0 bytes    0.0 %               │
│██████████████████████││workspaces             0 bytes    0.0 %               │
│██████████████████████││inputs                 0 bytes    0.0 %               │
╰ 62.5 % reserved ─────╯╰──────────────────────────────────────────────────────╯
╭ Live between steps, last 34: 12.00 MiB to 14.06 MiB ─────────────────────────╮
│              ▁▁▁▂▂▂▃▃▄▄▄▅▅▅▆▆▆▇▇█                                            │
│▄▄▄▅▅▅▆▆▆▇▇███████████████████████                                            │
│34 steps begun, growth +64.00 KiB a step                                      │
╰──────────────────────────────────────────────────────────────────────────────╯
 q quit  p pause  b bytes    largest free 12.00 MiB, retries 2, out of memory 0";

#[test]
fn a_usual_terminal_shows_all_of_a_sample_and_a_large_one_the_same() {
    let (view, now) = view(Palette::plain());
    assert_eq!(drawn(&view, now, [80, 24]).join("\n"), SCREEN);
    let large = drawn(&view, now, [120, 40]).join("\n");
    let words = SCREEN.split_whitespace().filter(|word| word.is_ascii());
    let missing: Vec<&str> = words.filter(|word| !large.contains(word)).collect();
    assert!(missing.is_empty(), "{missing:?} are not in\n{large}");
}

#[test]
fn without_colour_no_cell_has_one_and_with_it_parts_differ() {
    for (palette, coloured) in [(Palette::plain(), false), (Palette::coloured(), true)] {
        let (view, now) = view(palette);
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| view.draw(frame, now)).unwrap();
        let has_colour = |cell: &ratatui::buffer::Cell| cell.fg != Color::Reset || cell.bg != Color::Reset;
        assert_eq!(terminal.backend().buffer().content.iter().any(has_colour), coloured);
    }
}

#[test]
fn a_screen_of_any_size_is_drawn_and_a_small_one_begins_with_the_words() {
    let (view, now) = view(Palette::coloured());
    for width in [1, 2, 10, 77, 78, 79, 200, 500] {
        for height in [1, 2, 21, 22, 23, 60] {
            let lines = drawn(&view, now, [width, height]);
            assert_eq!(lines.len(), usize::from(height));
        }
    }
    assert!(drawn(&view, now, [60, 10])[2].starts_with("The limit of 64.00 MiB"));
}

#[test]
fn a_pause_keeps_the_picture_and_its_end_shows_the_newest() {
    let (mut view, now) = view(Palette::plain());
    let later = Sample { steps: 99, ..sample() };
    assert_eq!(view.press(key(KeyCode::Char('p'))), Wish::Stay);
    view.take(vec![later], now);
    let shows = |view: &View, text: &str| drawn(view, now, [80, 24]).join("\n").contains(text);
    assert!(shows(&view, "34 steps begun") && shows(&view, " paused"));
    view.press(key(KeyCode::Char('p')));
    assert!(shows(&view, "99 steps begun") && !shows(&view, " paused"));
}

#[test]
fn keys_leave_and_change_the_unit_and_others_do_nothing() {
    let (mut view, now) = view(Palette::plain());
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    for leave in [key(KeyCode::Char('q')), key(KeyCode::Esc), control_c] {
        assert_eq!(view.press(leave), Wish::Leave);
    }
    for stay in [KeyCode::Char('c'), KeyCode::Enter, KeyCode::Char('b')] {
        assert_eq!(view.press(key(stay)), Wish::Stay);
    }
    assert!(drawn(&view, now, [80, 24]).join("\n").contains("67108864 B"));
}

#[test]
fn a_process_that_is_silent_is_shown_and_steps_are_counted_in_seconds() {
    let (mut view, now) = view(Palette::plain());
    let after = |seconds| now + Duration::from_secs(seconds);
    assert!(drawn(&view, after(4), [80, 24])[0].ends_with("no answer for 4 s"));
    view.take(vec![Sample { steps: 134, ..sample() }], after(4));
    let lines = drawn(&view, after(4), [80, 24]);
    assert!(!lines[0].contains("no answer"), "{}", lines[0]);
    assert!(
        lines.join("\n").contains("134 steps begun, growth +64.00 KiB a step, 25.0 steps/s"),
        "{lines:#?}"
    );
}

#[test]
fn a_level_course_is_low_a_rise_is_high_and_the_least_is_never_nothing() {
    assert_eq!(heights(&[]), (vec![], 5));
    let (flat, top) = heights(&[1000, 1000]);
    assert!(flat.iter().all(|&height| height > 0 && height * 3 < top), "{flat:?} of {top}");
    let (rising, top) = heights(&[1000, 2000, 4000]);
    assert_eq!((rising[2], rising[1] - rising[0]), (top, 1000));
}
