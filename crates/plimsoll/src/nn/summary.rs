//! The parameters and sizes of a model's modules: [`Summary`].

use std::collections::BTreeSet;
use std::fmt;

use plimsoll_tensor::{Bytes, Tensor};

use super::member::{Member, Members};

/// Parameters, buffers and bytes of each module that has some, and of the complete model. A tied parameter is counted where it
/// first occurs.
///
/// ```
/// use plimsoll::nn::{Linear, Module, ReLU, Scope, Sequential};
/// use plimsoll::Device;
/// let model = Sequential::new(&Scope::new(&Device::cpu(), 1))
///     .add("fc1", |s| Linear::new(s, 784, 120))?
///     .add("relu", ReLU::new)?
///     .add("fc2", |s| Linear::new(s, 120, 10))?;
/// model.get("fc1").unwrap().requires_grad_(false)?;
/// let expected = "\
/// module  type        parameters  trained  buffers       bytes
/// fc1     Linear           94200        0        0  367.97 KiB
/// relu    ReLU                 0        0        0     0 bytes
/// fc2     Linear            1210     1210        0    4.73 KiB
/// total   Sequential       95410     1210        0  372.70 KiB
/// ";
/// assert_eq!(model.summary().to_string(), expected);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// A row for each module that owns tensors or has no modules inside it.
    pub rows: Vec<Row>,
    /// The totals of the model.
    pub total: Row,
}

/// The tensors of one module, without those of the modules inside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Its name in the model.
    pub name: String,
    /// Its type.
    pub kind: &'static str,
    /// Elements of its parameters.
    pub parameters: u64,
    /// Elements of the parameters that require a gradient.
    pub trained: u64,
    /// Elements of its buffers.
    pub buffers: u64,
    /// Bytes of parameters and buffers, without the allocator's rounding.
    pub bytes: u64,
}

impl Row {
    fn count(&mut self, tensor: &Tensor, is_buffer: bool) {
        let elements = tensor.numel() as u64;
        if is_buffer {
            self.buffers += elements;
        } else {
            self.parameters += elements;
            self.trained += if tensor.requires_grad() { elements } else { 0 };
        }
        self.bytes += elements * tensor.dtype().size() as u64;
    }
}

impl Summary {
    /// The summary of a model of this kind with these members. `modules` are the name, kind and members of each module inside it.
    pub(super) fn of<'a>(
        kind: &'static str,
        own: Members<'a>,
        modules: impl IntoIterator<Item = (String, &'static str, Members<'a>)>,
    ) -> Summary {
        let mut seen = BTreeSet::new();
        let mut rows = Vec::new();
        rows.extend(row(String::new(), kind, own, &mut seen).filter(|row| row.bytes > 0));
        for (name, kind, members) in modules {
            rows.extend(row(name, kind, members, &mut seen));
        }
        let mut total = Row { name: "total".to_owned(), kind, ..Row::default() };
        for row in &rows {
            total.parameters += row.parameters;
            total.trained += row.trained;
            total.buffers += row.buffers;
            total.bytes += row.bytes;
        }
        Summary { rows, total }
    }
}

/// The row of one module; none for a module that only groups others.
fn row(name: String, kind: &'static str, members: Members<'_>, seen: &mut BTreeSet<usize>) -> Option<Row> {
    let mut row = Row { name, kind, ..Row::default() };
    let mut groups = false;
    for (_, member) in members.0 {
        match member {
            Member::Parameter(parameter) if seen.insert(parameter.id()) => row.count(parameter, false),
            Member::Buffer(buffer) if seen.insert(buffer.id()) => row.count(buffer, true),
            Member::Module(_) => groups = true,
            _ => {}
        }
    }
    (row.bytes > 0 || !groups).then_some(row)
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells = |row: &Row| {
            [
                if row.name.is_empty() { "(itself)".to_owned() } else { row.name.clone() },
                row.kind.to_owned(),
                row.parameters.to_string(),
                row.trained.to_string(),
                row.buffers.to_string(),
                Bytes(row.bytes).to_string(),
            ]
        };
        let header = ["module", "type", "parameters", "trained", "buffers", "bytes"].map(str::to_owned);
        let lines: Vec<[String; 6]> =
            std::iter::once(header).chain(self.rows.iter().chain([&self.total]).map(cells)).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
        let widths: [usize; 6] = std::array::from_fn(width);
        for [name, kind, parameters, trained, buffers, bytes] in &lines {
            let [a, b, c, d, e, g] = widths;
            writeln!(
                f,
                "{name:<a$}  {kind:<b$}  {parameters:>c$}  {trained:>d$}  {buffers:>e$}  {bytes:>g$}"
            )?;
        }
        Ok(())
    }
}
