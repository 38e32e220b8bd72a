//! An explanation in forms that people read: the sentences that all of them share ([`words`]), those about a
//! recording's worth ([`quality`]), and a page that needs nothing but a browser ([`html`]). The program's text and
//! JSON are its own.

mod failure;
pub mod html;
pub mod quality;
pub mod words;
