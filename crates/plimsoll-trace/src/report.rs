//! A report: the verdict, and sections in reading order. A command makes one [`Report`]. The short text, the full text,
//! the JSON and the page are made from it.
//!
//! [`Report::json`] makes the JSON, `render/html/report.rs` the page; `plimsoll-cli` makes the two texts.

use serde_json::{Map, Value};

/// The answer of a command to one question.
#[derive(Debug, Clone)]
pub struct Report {
    /// The answer in one sentence.
    pub verdict: String,
    /// Whether the answer is bad news.
    pub is_bad: bool,
    /// The sections, in order.
    pub sections: Vec<Section>,
}

/// How important a section is. The short text has at most 40 lines; the most important sections are included first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Directly below the verdict, regardless of length.
    Head,
    /// Shown in the short text.
    Screen,
    /// Shown in the short text if there is room for it.
    Spare,
    /// Shown in the full text.
    Full,
    /// Shown only in the JSON.
    Data,
}

/// A part of a report: its key and value for programs, its heading and body for people.
#[derive(Debug, Clone)]
pub struct Section {
    /// The section's key in the JSON; empty if the value of another section contains this section's value.
    pub key: &'static str,
    /// The section's value in the JSON.
    pub value: Value,
    /// How important the section is.
    pub rank: Rank,
    /// The heading; empty for lines without a heading.
    pub heading: String,
    /// Text after the heading, on the same line.
    pub note: String,
    /// The contents for people.
    pub body: Body,
    /// The contents of the short text, used instead of heading and body.
    pub brief: Option<Brief>,
    /// Whether the page draws the section from the recording.
    pub is_drawn: bool,
}

/// The contents of a section for people.
#[derive(Debug, Clone)]
pub enum Body {
    /// One sentence per line.
    Lines(Vec<String>),
    /// A command to type.
    Command(String),
    /// Rows of figures.
    Table(Table),
}

/// The short form of a section.
#[derive(Debug, Clone)]
pub enum Brief {
    /// One line without a heading.
    Line(String),
    /// A smaller table below the same heading.
    Table(Table),
}

/// Rows of figures.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// The columns: one for each cell of a row.
    pub columns: Vec<Column>,
    /// The rows, the most important first.
    pub rows: Vec<Row>,
    /// The number of rows that a text shows. The other rows are combined into one row: their sum, if they are parts of
    /// a whole.
    pub most: usize,
    /// Sentences below the rows.
    pub notes: Vec<String>,
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// The column's key in the JSON.
    pub key: &'static str,
    /// The column's title; if no column has a title, the table has no header.
    pub title: &'static str,
    /// The column's minimum width in a text, in characters.
    pub width: usize,
    /// The unit after each figure of the column.
    pub unit: &'static str,
}

/// A row of a table.
#[derive(Debug, Clone)]
pub struct Row {
    /// The row's name in the JSON; empty if its cells identify the row.
    pub name: &'static str,
    /// A cell for each column.
    pub cells: Vec<Cell>,
}

/// A figure or words.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// A size.
    Bytes(u64),
    /// A fraction of a total, in percent.
    Percent(f64),
    /// A number.
    Count(u64),
    /// A figure with its unit, or words instead of a figure.
    Figure(String),
    /// Words.
    Text(String),
}

impl Report {
    /// The report as an object, with the value of each section at its key.
    pub fn json(&self) -> Value {
        let keyed = self.sections.iter().filter(|section| !section.key.is_empty());
        Value::Object(keyed.map(|section| (section.key.to_owned(), section.value.clone())).collect())
    }
}

impl Section {
    /// A section with a fact for programs only; people find the fact elsewhere in the report.
    pub fn data(key: &'static str, value: impl Into<Value>) -> Section {
        Section { value: value.into(), ..Section::new(key, Rank::Data, Body::Lines(Vec::new())) }
    }

    /// A section of sentences. In the JSON, they are an array.
    pub fn lines(key: &'static str, rank: Rank, lines: impl IntoIterator<Item = String>) -> Section {
        let lines: Vec<String> = lines.into_iter().collect();
        Section { value: lines.clone().into(), ..Section::new(key, rank, Body::Lines(lines)) }
    }

    /// A section with a command to type, below this heading. In the JSON, it is a string or `null`.
    pub fn command(key: &'static str, heading: &str, command: Option<String>) -> Section {
        let value = command.clone().into();
        let body = command.map_or_else(|| Body::Lines(Vec::new()), Body::Command);
        Section { value, ..Section::new(key, Rank::Head, body) }.headed(heading)
    }

    /// A section with a table. In the JSON, the rows are an array of objects.
    pub fn table(key: &'static str, rank: Rank, heading: impl Into<String>, table: Table) -> Section {
        Section { value: table.json(), ..Section::new(key, rank, Body::Table(table)) }.headed(heading)
    }

    fn new(key: &'static str, rank: Rank, body: Body) -> Section {
        let (heading, note) = (String::new(), String::new());
        Section { key, value: Value::Null, rank, heading, note, body, brief: None, is_drawn: false }
    }

    /// Sets the heading.
    pub fn headed(self, heading: impl Into<String>) -> Section {
        Section { heading: heading.into(), ..self }
    }

    /// Sets the text after the heading.
    pub fn noted(self, note: impl Into<String>) -> Section {
        Section { note: note.into(), ..self }
    }

    /// Sets the section's JSON value, replacing the one made from its contents.
    pub fn valued(self, value: impl Into<Value>) -> Section {
        Section { value: value.into(), ..self }
    }

    /// Sets the contents for the short text. With `None`, the section is only in the full text.
    pub fn briefly(self, brief: Option<Brief>) -> Section {
        let rank = if brief.is_some() { self.rank } else { self.rank.max(Rank::Full) };
        Section { rank, brief, ..self }
    }

    /// Marks the section as one that the page draws from the recording.
    pub fn drawn(self) -> Section {
        Section { is_drawn: true, ..self }
    }
}

impl Body {
    /// Whether the section has no contents.
    pub fn is_empty(&self) -> bool {
        match self {
            Body::Lines(lines) => lines.is_empty(),
            Body::Command(_) => false,
            Body::Table(table) => table.rows.is_empty(),
        }
    }
}

impl Column {
    /// A column of a table without a header.
    pub const fn untitled(key: &'static str, width: usize, unit: &'static str) -> Column {
        Column { key, title: "", width, unit }
    }
}

impl Table {
    /// A table that shows all of these rows, and has no notes.
    pub fn of(columns: Vec<Column>, rows: Vec<Row>) -> Table {
        Table { columns, most: rows.len(), rows, notes: Vec::new() }
    }

    /// Whether the table has a header.
    pub fn is_titled(&self) -> bool {
        self.columns.iter().any(|column| !column.title.is_empty())
    }

    /// Whether the table is a sum, whose rows consist of a figure and a sentence.
    pub fn is_sum(&self) -> bool {
        self.columns.len() <= 2
    }

    /// The rows that are shown, plus one row for all other rows.
    pub fn shown(&self) -> Vec<Vec<Cell>> {
        let (listed, rest) = self.rows.split_at(self.rows.len().min(self.most));
        let mut shown: Vec<Vec<Cell>> = listed.iter().map(|row| row.cells.clone()).collect();
        if !rest.is_empty() {
            shown.push(self.sum(rest));
        }
        shown
    }

    /// Combines several rows into one. Their figures are added up if the table has a column of shares.
    fn sum(&self, rest: &[Row]) -> Vec<Cell> {
        let more = Cell::Text(format!("{} more", rest.len()));
        let column = |nth: usize| rest.iter().map(move |row| &row.cells[nth]);
        let is_whole = rest.iter().any(|row| row.cells.iter().any(|cell| matches!(cell, Cell::Percent(_))));
        if !is_whole {
            return vec![more];
        }
        let bytes = |cell: &Cell| if let Cell::Bytes(bytes) = cell { *bytes } else { 0 };
        let percent = |cell: &Cell| if let Cell::Percent(percent) = cell { *percent } else { 0.0 };
        let count = |cell: &Cell| if let Cell::Count(count) = cell { *count } else { 0 };
        let mut words = std::iter::once(more);
        let sum = |nth: usize| match rest[0].cells[nth] {
            Cell::Bytes(_) => Cell::Bytes(column(nth).map(bytes).fold(0, u64::saturating_add)),
            Cell::Percent(_) => Cell::Percent(column(nth).map(percent).sum()),
            Cell::Count(_) => Cell::Count(column(nth).map(count).sum()),
            Cell::Figure(_) | Cell::Text(_) => words.next().unwrap_or_else(|| Cell::Text(String::new())),
        };
        (0..self.columns.len()).map(sum).collect()
    }

    /// Every row as an object, with the columns' keys.
    fn json(&self) -> Value {
        let object = |row: &Row| {
            let cells = self.columns.iter().zip(&row.cells);
            let mut object: Map<String, Value> =
                cells.map(|(column, cell)| (column.key.to_owned(), cell.json())).collect();
            if !row.name.is_empty() {
                object.insert("name".to_owned(), row.name.into());
            }
            Value::Object(object)
        };
        self.rows.iter().map(object).collect()
    }
}

impl Row {
    /// A row that is identified by its cells.
    pub fn of(cells: impl IntoIterator<Item = Cell>) -> Row {
        Row::named("", cells)
    }

    /// A row with a name in the JSON output.
    pub fn named(name: &'static str, cells: impl IntoIterator<Item = Cell>) -> Row {
        Row { name, cells: cells.into_iter().collect() }
    }
}

impl Cell {
    /// A cell with words.
    pub fn text(text: impl Into<String>) -> Cell {
        Cell::Text(text.into())
    }

    /// A cell with a part as a percentage of a total.
    pub fn share(bytes: u64, of: u64) -> Cell {
        Cell::Percent(if of == 0 { 0.0 } else { 100.0 * bytes as f64 / of as f64 })
    }

    fn json(&self) -> Value {
        match self {
            Cell::Bytes(number) | Cell::Count(number) => (*number).into(),
            Cell::Percent(percent) => (*percent).into(),
            Cell::Figure(text) | Cell::Text(text) => text.as_str().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn table(most: usize) -> Table {
        let column = |key| Column::untitled(key, 0, "");
        let row = |bytes, what| {
            Row::named(what, [Cell::Bytes(bytes), Cell::share(bytes, 10), Cell::text(format!("the {what}"))])
        };
        let rows = vec![row(7, "first"), row(2, "second"), row(1, "third")];
        Table { most, ..Table::of(["bytes", "percent", "what"].map(column).into(), rows) }
    }

    #[test]
    fn programs_read_every_row_and_people_a_sum_of_the_last() {
        let section = Section::table("rows", Rank::Full, "Rows", table(1));
        assert_eq!(
            section.value[2],
            json!({ "name": "third", "bytes": 1, "percent": 10.0, "what": "the third" })
        );
        let shown = table(1).shown();
        assert_eq!(shown[1], [Cell::Bytes(3), Cell::Percent(30.0), Cell::text("2 more")]);
        assert_eq!(table(3).shown().len(), 3);
    }

    #[test]
    fn each_key_has_its_value_and_what_is_for_people_alone_has_none() {
        let sections = vec![
            Section::data("schema", "plimsoll.test/1"),
            Section::lines("", Rank::Full, ["only for people".to_owned()]),
            Section::command("next", "Next", None),
        ];
        let report = Report { verdict: "fits".to_owned(), is_bad: false, sections };
        assert_eq!(report.json(), json!({ "schema": "plimsoll.test/1", "next": null }));
    }
}
