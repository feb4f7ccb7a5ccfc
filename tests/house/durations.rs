//! `model::humane` and `model::duration` print all durations, so that each text has the same form and can be read back.

use std::fs;
use std::path::Path;

use crate::sources::files;

/// Files that print a duration by themselves: the beginning of the path below src, and the reason.
const BY_THEMSELVES: &[(&str, &str)] = &[
    ("lab/", "the demo's clocks keep their width, and the kubelets' measurements their milliseconds"),
    ("model/fleet/simulation", "a test"),
    ("model/fleet/vip/simulation", "a test"),
    ("model/humane.rs", "the printers"),
];

const UNITS: &[&str] = &["s", "ms", "µs", "us", "ns", "seconds", "minutes"];

#[test]
fn durations_are_printed_by_the_printers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut faults = Vec::new();
    for path in files(&root).into_iter().filter(|path| !path.ends_with("tests.rs")) {
        let below = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
        if !BY_THEMSELVES.iter().any(|(own, _)| below.starts_with(own)) {
            let text = fs::read_to_string(&path).unwrap();
            faults.extend(printed_bare(&text).map(|line| format!("src/{below}: {line}")));
        }
    }
    assert!(faults.is_empty(), "use humane::duration_ms or duration::display:\n{}", faults.join("\n"));
}

/// Lines with a value and a unit of time after it.
fn printed_bare(text: &str) -> impl Iterator<Item = &str> {
    let is_bare = |after: &str| {
        let unit = after.split(|c: char| !c.is_alphabetic()).next();
        unit.is_some_and(|unit| UNITS.contains(&unit))
    };
    text.lines().map(str::trim).filter(move |line| line.split("} ").skip(1).any(is_bare))
}

#[test]
fn a_bare_duration_is_found() {
    let found = |text: &str| printed_bare(text).count();
    assert_eq!(found(r#"#[error("no answer within {limit_ms} ms")]"#), 1);
    assert_eq!(found(r#"format!("waits up to {} s: too long", limit.as_secs())"#), 1);
    assert_eq!(found(r#"format!("{:>6} µs", x)"#), 1);
    assert_eq!(found(r#"format!("{flows} sockets in {}", duration_ms(x))"#), 0);
}
