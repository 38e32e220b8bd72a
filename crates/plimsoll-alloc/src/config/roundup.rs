//! Parsing and writing the rounding table, `roundup_power2_divisions`: one number for all sizes, or a list
//! `[size:divisions,…,>:divisions]` with sizes in MiB.
//!
//! An item of the list sets one entry of the table. The first item also sets the entries of all smaller sizes. `>` sets
//! the entries of all sizes above the item before it. Other entries do not change, so gaps in the list stay off.

use super::error::{ConfigError, ConfigProblem, InvalidOption};
use super::reader::{Named, Reader};
use super::setting::Setting;
use super::value::{ROUNDUP_ENTRIES, RoundupRest};
use super::warning::WarningKind;

/// The divisions by size, as in [`super::Config::roundup_power2_divisions`].
pub(super) type Table = [u64; ROUNDUP_ENTRIES];

/// Parses the value of `option` into `table`. Returns the position of its last word.
pub(super) fn read(
    reader: &mut Reader,
    option: Named,
    rest: RoundupRest,
    table: &mut Table,
) -> Result<usize, ConfigError> {
    let at = option.at + 2;
    if reader.needed(option, at)? == "[" {
        return read_list(reader, option, rest, table);
    }
    let divisions = reader.whole(option, at)?;
    *table = [power_of_two(reader, option, at, divisions)?; ROUNDUP_ENTRIES];
    Ok(at)
}

fn read_list(
    reader: &mut Reader,
    option: Named,
    rest: RoundupRest,
    table: &mut Table,
) -> Result<usize, ConfigError> {
    let (mut at, mut last, mut first) = (option.at + 3, 0, true);
    loop {
        let word = reader.word(at);
        let is_rest = match word.ok_or_else(|| reader.fail(option, at, ConfigProblem::ListNotClosed))? {
            "]" => return Ok(at),
            word => word == ">",
        };
        let value_at = reader.value_at(option, at)?;
        let divisions = match reader.whole(option, value_at)? {
            0 => 0,
            divisions => power_of_two(reader, option, value_at, divisions)?,
        };
        if is_rest {
            table[last + usize::from(rest == RoundupRest::AfterLast)..].fill(divisions);
        } else {
            last = entry(reader, option, at)?;
            let fill_from = if first { 0 } else { last };
            table[fill_from..=last].fill(divisions);
            first = false;
        }
        at = match reader.needed(option, value_at + 1)? {
            "]" => value_at + 1,
            _ => reader.after(value_at),
        };
    }
}

/// The table entry for the size in MiB at word `at`.
fn entry(reader: &mut Reader, option: Named, at: usize) -> Result<usize, ConfigError> {
    let mebibytes = reader.whole(option, at)?;
    let index = power_of_two(reader, option, at, mebibytes)?.ilog2() as usize;
    if index >= ROUNDUP_ENTRIES {
        reader.warn(at, WarningKind::Capped { value: 1 << (ROUNDUP_ENTRIES - 1) });
    }
    Ok(index.min(ROUNDUP_ENTRIES - 1))
}

fn power_of_two(reader: &Reader, option: Named, at: usize, value: u64) -> Result<u64, ConfigError> {
    if value.is_power_of_two() {
        return Ok(value);
    }
    Err(reader.invalid(option, at, InvalidOption::NotAPowerOfTwo { value }))
}

/// The shortest value that parses to `table`; None if every entry is off, the default.
pub(super) fn write(table: &Table, rest: RoundupRest) -> Option<String> {
    let end = table[ROUNDUP_ENTRIES - 1];
    let tail = table.iter().rposition(|&divisions| divisions != end).map_or(0, |before| before + 1);
    if tail == 0 {
        return (end != 0).then(|| end.to_string());
    }
    let head = table.iter().position(|&divisions| divisions != table[0]).unwrap_or(ROUNDUP_ENTRIES) - 1;
    // Use `>` for the equal entries at the end. What it covers depends on the entry before it.
    let by_rest = end != 0 && tail < ROUNDUP_ENTRIES - 1;
    let counts_from = if rest == RoundupRest::AfterLast { tail - 1 } else { tail };
    // If the head is off (0), write only its first entry, so that the next entry does not fill it.
    let first = if table[0] == 0 && !(by_rest && head == counts_from) { 0 } else { head };
    let said = |&index: &usize| match index {
        _ if by_rest && index >= counts_from => index == counts_from && (index, table[0]) != (0, 0),
        _ => index == first || (index > head && table[index] != 0),
    };
    let entries =
        (0..ROUNDUP_ENTRIES).filter(said).map(|index| format!("{}:{}", 1u64 << index, table[index]));
    let entries: Vec<_> = entries.chain(by_rest.then(|| format!(">:{end}"))).collect();
    Some(format!("[{}]", entries.join(",")))
}

/// The table as a snapshot has it: divisions by size in MiB.
pub(super) fn setting(table: &Table) -> Setting {
    let sizes = (0..).map(|index| (1u64 << index).to_string());
    Setting::BySize(sizes.zip(table.map(u64::cast_signed)).collect())
}

/// `table` with the entries that a snapshot's table has.
pub(super) fn of_setting(mut table: Table, setting: &Setting) -> Table {
    let Setting::BySize(entries) = setting else { return table };
    for (mebibytes, divisions) in entries {
        // The entry for 2^n MiB has index n.
        let entry = mebibytes.parse::<u64>().ok().and_then(u64::checked_ilog2);
        if let Some(entry) = entry.and_then(|entry| table.get_mut(entry as usize)) {
            *entry = u64::try_from(*divisions).unwrap_or(0);
        }
    }
    table
}
