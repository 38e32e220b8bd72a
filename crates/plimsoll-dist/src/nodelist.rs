//! Parses SLURM's compact lists of hosts (`node[01-03,7],gpu4`) and of tasks per host (`2(x3),1`).

/// More hosts than any job has. A longer list is rejected instead of expanded.
const MOST: usize = 1 << 20;

/// The hosts in a list, in the list's order; `None` if the text is not such a list.
///
/// ```
/// assert_eq!(plimsoll_dist::hosts("n[08-10,2],login").unwrap(), ["n08", "n09", "n10", "n2", "login"]);
/// assert_eq!(plimsoll_dist::hosts("n[3-1]"), None);
/// ```
pub fn hosts(list: &str) -> Option<Vec<String>> {
    let mut found = Vec::new();
    for pattern in split(list)? {
        let mut names = vec![String::new()];
        let mut rest = pattern;
        while let Some(open) = rest.find('[') {
            let close = open + rest[open..].find(']')?;
            let numbers = numbers(&rest[open + 1..close])?;
            if names.len().checked_mul(numbers.len())? > MOST {
                return None;
            }
            let before = &rest[..open];
            let mut longer = Vec::with_capacity(names.len() * numbers.len());
            for name in &names {
                longer.extend(numbers.iter().map(|number| format!("{name}{before}{number}")));
            }
            names = longer;
            rest = &rest[close + 1..];
        }
        if rest.contains(']') || pattern.is_empty() || found.len() + names.len() > MOST {
            return None;
        }
        found.extend(names.into_iter().map(|name| name + rest));
    }
    Some(found)
}

/// The number of tasks on each host, in host order; `None` if the text is not such a list.
///
/// ```
/// assert_eq!(plimsoll_dist::tasks_per_node("2(x3),1").unwrap(), [2, 2, 2, 1]);
/// ```
pub fn tasks_per_node(list: &str) -> Option<Vec<usize>> {
    let mut found = Vec::new();
    for part in list.split(',') {
        let (count, times) = match part.split_once("(x") {
            None => (part, 1),
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
        };
        let count: usize = count.parse().ok()?;
        if found.len().checked_add(times)? > MOST {
            return None;
        }
        found.extend(std::iter::repeat_n(count, times));
    }
    Some(found)
}

/// Splits a list at the commas outside brackets.
fn split(list: &str) -> Option<Vec<&str>> {
    let (mut parts, mut start, mut is_inside) = (Vec::new(), 0, false);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'[' if is_inside => return None,
            b'[' => is_inside = true,
            b']' => is_inside = false,
            b',' if !is_inside => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    Some(parts)
}

/// Expands `01-03,7`. The numbers of a range are padded with zeros to the width of its first number.
fn numbers(ranges: &str) -> Option<Vec<String>> {
    let mut found = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_digits(first) || !is_digits(last) {
            return None;
        }
        let (from, to): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        if from > to || to - from >= MOST as u64 {
            return None;
        }
        found.extend((from..=to).map(|number| format!("{number:0width$}", width = first.len())));
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_hosts_expand_in_their_order() {
        for (list, expected) in [
            ("localhost", vec!["localhost"]),
            ("a,b", vec!["a", "b"]),
            ("n[1-3]", vec!["n1", "n2", "n3"]),
            ("n[01-03,7],gpu4", vec!["n01", "n02", "n03", "n7", "gpu4"]),
            ("r[1-2]n[1,3].x", vec!["r1n1.x", "r1n3.x", "r2n1.x", "r2n3.x"]),
            ("n[098-101]", vec!["n098", "n099", "n100", "n101"]),
        ] {
            assert_eq!(
                hosts(list).as_deref(),
                Some(&expected.iter().map(ToString::to_string).collect::<Vec<_>>()[..])
            );
        }
    }

    #[test]
    fn what_is_not_a_list_is_refused() {
        for list in [
            "",
            "a,",
            "n[1-",
            "n]",
            "n[[1]]",
            "n[3-1]",
            "n[a-b]",
            "n[]",
            "n[1-99999999999]",
            "n[1-1048576][1-9]",
        ] {
            assert_eq!(hosts(list), None, "{list}");
        }
        for list in ["", "x", "2(x", "2(x3", "2(3)", "1(x99999999999)"] {
            assert_eq!(tasks_per_node(list), None, "{list}");
        }
    }
}
