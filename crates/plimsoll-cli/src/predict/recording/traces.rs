//! The program's effects outside its own processes: [`Traces`].

use crate::predict::view::{Isolation, Written};

/// The files that a program would have written, and the hosts that it contacted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Traces {
    /// How the program's writes were kept off the disk; `None` if it was allowed to write.
    pub(crate) isolation: Option<Isolation>,
    /// Why an isolation that was tried before this one does not work here.
    pub(crate) instead_of: Option<String>,
    pub(crate) written: Written,
    pub(crate) hosts: Vec<String>,
}
