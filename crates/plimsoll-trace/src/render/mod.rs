//! An explanation in forms that people read: the sentences that all of them share ([`words`]), and a page that
//! needs nothing but a browser ([`html`]). The program's text and JSON are its own.

pub mod html;
pub mod words;
