//! Layers: what a model is made of, with PyTorch's names, defaults and initialisation.
//!
//! A layer is built in a [`Scope`], which gives it its path: the owner of its bytes, and the source of its random numbers.
//! [`Module`] is the trait of layers and models (`module.rs`); it works on lists of their members (`member.rs`). A layer is
//! a file: a struct with its label, its [`Parameter`]s, [`Buffer`]s and [`Mode`]; a constructor; `impl Module` with
//! [`members!`](crate::members) and a `forward` that opens a span. `linear.rs` is an example.

mod activation;
mod conv;
mod dropout;
mod embedding;
mod init;
mod linear;
mod list;
mod member;
mod mode;
mod module;
mod norm;
mod parameter;
mod pool;
mod scope;
mod sequential;
mod summary;

pub use activation::{Flatten, ReLU};
pub use conv::Conv2d;
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use init::Init;
pub use linear::Linear;
pub use list::ModuleList;
pub use member::{IsMember, Member, MemberMut, Members, MembersMut};
pub use mode::Mode;
pub use module::Module;
pub use norm::{LayerNorm, RmsNorm};
pub use parameter::{Buffer, Parameter};
pub use pool::MaxPool2d;
pub use scope::Scope;
pub use sequential::Sequential;
pub use summary::{Row, Summary};
