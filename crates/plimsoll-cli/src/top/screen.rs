//! The terminal: drawn on, listened to, and left as it was found, however this ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use anstream::{AutoStream, ColorChoice};
use plimsoll::memory::live::{Sample, Watcher};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::view::{Palette, View, Wish};

/// How long a key waits at most for a sample, and a sample for a key.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Draws samples until the process ends, or a key or a signal says so. Returns the last that was heard of a process
/// that has ended; none if somebody has seen enough.
///
/// # Errors
/// The terminal's, or what the process answers instead of a sample.
pub(super) fn watch(
    watcher: Watcher,
    first: Sample,
    interval: Duration,
    whole: bool,
) -> io::Result<Option<Sample>> {
    let told_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, told_to_end.clone())?;
    }
    let plain = AutoStream::choice(&io::stdout()) == ColorChoice::Never;
    let palette = if plain { Palette::plain() } else { Palette::coloured() };
    let mut view = View::new(first, whole, palette, Instant::now());
    let news = ask(watcher, interval);
    let mut screen = Screen::open()?;
    loop {
        match news.try_recv() {
            Ok(Ok(sample)) => view.take(sample, Instant::now()),
            Ok(Err(why)) => return Err(why),
            Err(TryRecvError::Disconnected) => return Ok(Some(view.into_newest())),
            Err(TryRecvError::Empty) => {}
        }
        screen.0.draw(|frame| view.draw(frame, Instant::now()))?;
        if told_to_end.load(Ordering::Relaxed) {
            return Ok(None);
        }
        // A change of size is an event, too, after which all is drawn anew.
        if event::poll(LOOK_EVERY)?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
            && view.press(key) == Wish::Leave
        {
            return Ok(None);
        }
    }
}

/// Samples, from a thread of their own: a process that does not answer must not keep keys waiting. The channel ends
/// when the process does.
fn ask(mut watcher: Watcher, interval: Duration) -> Receiver<io::Result<Sample>> {
    let (news, heard) = mpsc::channel();
    thread::spawn(move || {
        loop {
            thread::sleep(interval);
            let told = match watcher.sample() {
                Ok(Some(sample)) => news.send(Ok(sample)),
                Ok(None) => return,
                // It may be stopped, and go on.
                Err(why) if why.kind() == io::ErrorKind::TimedOut => Ok(()),
                Err(why) => {
                    let _ = news.send(Err(why));
                    return;
                }
            };
            if told.is_err() {
                return;
            }
        }
    });
    heard
}

/// The terminal in the state for drawing, until this is dropped; a panic ends that, too.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Screen> {
        ratatui::try_init().map(Screen).inspect_err(|_| ratatui::restore())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
