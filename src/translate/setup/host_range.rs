//! The ranges in the names of an inventory's hosts.

/// The hosts that a pattern of Ansible's stands for: `cp[01:03].example.com` for three, `cp-[a:c]` as well, each other step if a third part says
/// so. A name without a pattern, or with one that is none, stands for itself.
pub(super) fn expanded(pattern: &str) -> Vec<String> {
    // No name is longer (RFC 1035, section 2.3.4), and each range is a call of this.
    let range = Some(pattern).filter(|it| it.len() <= NAME_BYTES_MAX).and_then(|it| it.split_once('['));
    let range = range.and_then(|(head, rest)| Some((head, rest.split_once(']')?)));
    let all = range.and_then(|(head, (range, tail))| {
        let mut parts = range.splitn(3, ':');
        let (first, last) = (parts.next()?, parts.next()?);
        let step: usize = parts.next().unwrap_or("1").parse().ok().filter(|step| *step > 0)?;
        let of_range: Vec<String> = match (first.parse::<u32>(), last.parse::<u32>()) {
            (Ok(from), Ok(to)) if to.checked_sub(from)? < HOSTS_MAX => {
                // As many digits as the first has, if it begins with a zero.
                let width = if first.starts_with('0') { first.len() } else { 0 };
                (from..=to).step_by(step).map(|number| format!("{number:0width$}")).collect()
            }
            (Err(_), Err(_)) => match (first.as_bytes(), last.as_bytes()) {
                ([from], [to]) if from.is_ascii_alphabetic() && to.is_ascii_alphabetic() => {
                    (*from..=*to).step_by(step).map(|letter| char::from(letter).to_string()).collect()
                }
                _ => return None,
            },
            _ => return None,
        };
        // There may be another one behind it.
        let tails = expanded(tail);
        (of_range.len() * tails.len() <= HOSTS_MAX as usize).then(|| {
            let with_tails =
                |it: &String| tails.iter().map(move |tail| format!("{head}{it}{tail}")).collect::<Vec<_>>();
            of_range.iter().flat_map(with_tails).collect()
        })
    });
    all.unwrap_or_else(|| vec![pattern.to_owned()])
}

const NAME_BYTES_MAX: usize = 255;

/// A longer range is no list of apiservers.
const HOSTS_MAX: u32 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the group `10.0.0.[11:13]` was said to be a host without an address.
    #[test]
    fn a_range_of_hosts_stands_for_each_of_them() {
        let all = |text: &str| expanded(text).join(" ");
        assert_eq!(all("10.0.0.[11:13]"), "10.0.0.11 10.0.0.12 10.0.0.13");
        assert_eq!(all("cp[08:10].example.com"), "cp08.example.com cp09.example.com cp10.example.com");
        assert_eq!(all("cp[1:5:2]"), "cp1 cp3 cp5");
        assert_eq!(all("rack[a:b]-[1:2]"), "racka-1 racka-2 rackb-1 rackb-2");
        for itself in ["cp1", "cp[1]", "cp[1:", "cp[x:10]", "cp[3:1]", "cp[0:4000000000]", "[1:999][1:999]"] {
            assert_eq!(all(itself), itself);
        }
    }
}
