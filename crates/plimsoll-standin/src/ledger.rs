//! The device memory that a process uses outside its own requests, as rows that add up to the total ([`Ledger`]).

use plimsoll_gpu::outside::Figure;

/// One part of an owner's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    /// The owner, such as `cuBLAS` or `communicator 1, 2 ranks`.
    pub(crate) owner: String,
    /// The part, such as `ring`. Empty if the owner has only one part.
    pub(crate) part: &'static str,
    pub(crate) figure: Figure,
    /// The first call that allocated memory for this part.
    pub(crate) call: &'static str,
}

/// A charge that did not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) row: Row,
    /// The device's free bytes at that time.
    pub(crate) free_bytes: u64,
}

/// The memory of one device that a process uses outside its requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger {
    rows: Vec<Row>,
    bytes: u64,
    /// The number of changes so far.
    changes: u64,
    /// The last charge that did not fit.
    pub(crate) refused: Option<Refused>,
}

impl Ledger {
    /// Adds bytes to a part. If the bases differ, the part gets the less certain one.
    pub(crate) fn add(&mut self, row: Row) {
        self.bytes += row.figure.bytes;
        self.changes += 1;
        match self.rows.iter_mut().find(|it| it.owner == row.owner && it.part == row.part) {
            Some(it) => {
                it.figure.bytes += row.figure.bytes;
                it.figure.basis = it.figure.basis.max(row.figure.basis);
            }
            None => self.rows.push(row),
        }
    }

    /// Removes all rows of an owner. Returns their bytes.
    pub(crate) fn remove(&mut self, owner: &str) -> u64 {
        let before_bytes = self.bytes;
        self.rows.retain(|row| row.owner != owner);
        self.bytes = self.rows.iter().map(|row| row.figure.bytes).sum();
        self.changes += 1;
        before_bytes - self.bytes
    }

    /// Removes bytes from a part, at most as many as it has. Returns the number of bytes removed.
    pub(crate) fn subtract(&mut self, owner: &str, part: &str, bytes: u64) -> u64 {
        let row = self.rows.iter_mut().find(|it| it.owner == owner && it.part == part);
        let Some(row) = row else { return 0 };
        let bytes = bytes.min(row.figure.bytes);
        row.figure.bytes -= bytes;
        self.bytes -= bytes;
        self.changes += 1;
        bytes
    }

    /// The sum of the rows.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bytes that belong to an owner.
    pub(crate) fn bytes_of(&self, owner: &str) -> u64 {
        let rows = self.rows.iter().filter(|row| row.owner == owner);
        rows.map(|row| row.figure.bytes).sum()
    }
}

/// The memory of a process on a device at the peak.
#[derive(Debug, Clone, Default)]
pub(crate) struct Peak {
    /// The sum of its requests and all rows.
    bytes: u64,
    requested_bytes: u64,
    rows: Vec<Row>,
    changes: u64,
}

impl Peak {
    /// Records the current use if it exceeds the peak so far.
    pub(crate) fn note(&mut self, requested_bytes: u64, ledger: &Ledger) {
        let bytes = requested_bytes + ledger.bytes;
        if bytes <= self.bytes {
            return;
        }
        (self.bytes, self.requested_bytes) = (bytes, requested_bytes);
        if self.changes != ledger.changes {
            (self.rows, self.changes) = (ledger.rows.clone(), ledger.changes);
        }
    }

    /// Tab-separated lines, for hooks inside the process. The first line is `requested` and the requested bytes. Each row is a
    /// line with `row`, owner, part, bytes, basis and call. A charge that did not fit is a line with `refused`, the same fields,
    /// and the free bytes.
    pub(crate) fn text(&self, refused: Option<&Refused>) -> String {
        let line = |Row { owner, part, figure: Figure { bytes, basis }, call }: &Row| {
            format!("\t{owner}\t{part}\t{bytes}\t{basis}\t{call}")
        };
        let mut lines = vec![format!("requested\t{}", self.requested_bytes)];
        lines.extend(
            self.rows.iter().filter(|row| row.figure.bytes > 0).map(|row| format!("row{}", line(row))),
        );
        lines.extend(refused.map(|it| format!("refused{}\t{}", line(&it.row), it.free_bytes)));
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_gpu::outside::Basis;

    use super::*;

    fn row(owner: &str, part: &'static str, bytes: u64, basis: Basis) -> Row {
        Row { owner: owner.to_owned(), part, figure: Figure { bytes, basis }, call: "cuCall" }
    }

    #[test]
    fn rows_add_up_and_an_owner_is_removed_with_all_its_parts() {
        let mut ledger = Ledger::default();
        ledger.add(row("context", "", 5, Basis::Measured));
        ledger.add(row("communicator 1", "base", 7, Basis::Measured));
        ledger.add(row("communicator 1", "peers", 1, Basis::Measured));
        ledger.add(row("communicator 1", "peers", 2, Basis::Derived));
        assert_eq!((ledger.bytes(), ledger.bytes_of("communicator 1"), ledger.rows.len()), (15, 10, 3));
        assert_eq!(ledger.rows[2].figure.basis, Basis::Derived);
        assert_eq!(ledger.subtract("communicator 1", "peers", 9), 3);
        assert_eq!((ledger.remove("communicator 1"), ledger.remove("communicator 1")), (7, 0));
        assert_eq!(ledger.bytes(), 5);
    }

    #[test]
    fn the_peak_keeps_the_rows_of_its_time() {
        let (mut ledger, mut peak) = (Ledger::default(), Peak::default());
        ledger.add(row("context", "", 5, Basis::Measured));
        peak.note(10, &ledger);
        ledger.add(row("ring", "", 3, Basis::Derived));
        peak.note(10, &ledger);
        ledger.remove("ring");
        peak.note(12, &ledger);
        let refused = Refused { row: row("tree", "", 9, Basis::Assumed), free_bytes: 4 };
        let expected = "requested\t10\nrow\tcontext\t\t5\tmeasured\tcuCall\nrow\tring\t\t3\tderived\tcuCall\n\
                        refused\ttree\t\t9\tassumed\tcuCall\t4";
        assert_eq!(peak.text(Some(&refused)), expected);
    }
}
