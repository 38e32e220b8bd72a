//! Draws on the terminal, reads its keys, and restores its state no matter how the program ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anstream::{AutoStream, ColorChoice};
use plimsoll::memory::live::Sample;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::palette::Palette;
use super::view::{View, Wish};
use super::watched::Watched;

/// How often to check for signals and redraw if nothing else happens.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Messages from the waiting threads to the one that draws.
enum News {
    Samples(Vec<Sample>),
    /// The process has ended.
    Over,
    Key(KeyEvent),
    /// The terminal's size changed.
    Resized,
    Failed(io::Error),
}

/// Draws samples until the process ends, or until a key or a signal stops it. Returns the last sample of a process
/// that has ended, or none if the user quit.
///
/// # Errors
/// The terminal's error, or the process's if it does not return a sample.
pub(super) fn watch(
    watched: Watched,
    first: Vec<Sample>,
    interval: Duration,
    whole: bool,
) -> io::Result<Option<Vec<Sample>>> {
    let told_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, told_to_end.clone())?;
    }
    let plain = AutoStream::choice(&io::stdout()) == ColorChoice::Never;
    let palette = if plain { Palette::plain() } else { Palette::coloured() };
    let mut view = View::new(first, whole, palette, Instant::now());
    let mut screen = Screen::open()?;
    let (tell, news) = mpsc::channel();
    let telling = tell.clone();
    thread::spawn(move || ask(watched, interval, &telling));
    thread::spawn(move || listen(&tell));
    while !told_to_end.load(Ordering::Relaxed) {
        screen.0.draw(|frame| view.draw(frame, Instant::now()))?;
        match news.recv_timeout(LOOK_EVERY) {
            Ok(News::Samples(samples)) => view.take(samples, Instant::now()),
            Ok(News::Over) => return Ok(Some(view.into_newest())),
            Ok(News::Key(key)) if view.press(key) == Wish::Leave => return Ok(None),
            Ok(News::Failed(why)) => return Err(why),
            Ok(News::Key(_) | News::Resized) | Err(RecvTimeoutError::Timeout) => {}
            // Both threads report why they end.
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
    Ok(None)
}

// Note [Threads that wait]
// A stopped process does not answer for seconds, and crossterm's `poll` and `read` never return after the terminal was
// closed (they loop at the end of file). Neither may delay the other, or a signal. So each has its own thread, which
// ends with the program.

/// Sends samples until the process ends.
fn ask(mut watched: Watched, interval: Duration, tell: &Sender<News>) {
    loop {
        thread::sleep(interval);
        let news = match watched.sampled() {
            Ok(samples) if samples.is_empty() => News::Over,
            Ok(samples) => News::Samples(samples),
            // It may be stopped, and continue later.
            Err(why) if why.kind() == io::ErrorKind::TimedOut => continue,
            Err(why) => News::Failed(why),
        };
        let last = !matches!(news, News::Samples(_));
        if tell.send(news).is_err() || last {
            return;
        }
    }
}

/// Sends keys and size changes.
fn listen(tell: &Sender<News>) {
    loop {
        let news = match event::read() {
            Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => News::Key(key),
            Ok(Event::Resize(..)) => News::Resized,
            Ok(_) => continue,
            Err(why) => News::Failed(why),
        };
        let last = matches!(news, News::Failed(_));
        if tell.send(news).is_err() || last {
            return;
        }
    }
}

/// Keeps the terminal in the drawing state until it is dropped, which also happens after a panic.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Screen> {
        ratatui::try_init().map(Screen).inspect_err(|_| drop(ratatui::try_restore()))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        let _ = ratatui::try_restore();
    }
}
