//! The program's effects outside its own processes: [`Traces`].

use crate::predict::view::{Isolation, Written};

/// The files that a program would have written, and the hosts that it contacted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Traces {
    /// `None` if the program was allowed to write.
    pub(crate) isolation: Option<Isolation>,
    /// Why an isolation that is tried earlier does not work here.
    pub(crate) instead_of: Option<String>,
    pub(crate) written: Written,
    pub(crate) hosts: Vec<String>,
}
