//! What others wrote and the binary contains: where it comes from, under which licences, and what is in it twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Under each of these (SPDX identifiers), a binary may be given away with its licence's text beside it.
const LICENCES: [&str; 12] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Packages of which the binary has two versions, or their macros, until those that need the older one have moved.
const TWICE: [&str; 11] = [
    // hdrhistogram has the older one, pem of rcgen the newer one.
    "base64",
    // snow's chacha20poly1305 has the older ones, rand the newer ones.
    "chacha20",
    "cpufeatures",
    // Macros: netlink-packet-core's derive_more.
    "convert_case",
    "derive_more",
    // At build time alone, in what compiles prometheus-client's messages: petgraph.
    "foldhash",
    // ring has 0.2, snow 0.3, rand 0.4.
    "getrandom",
    // As foldhash.
    "hashbrown",
    // Macros: prost-derive.
    "itertools",
    // Macros that have not moved to 3.
    "syn",
    // At build time alone: miette, of protox.
    "unicode-width",
];

#[test]
fn every_package_is_from_the_registry_and_has_its_checksum() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for lock in ["Cargo.lock", "fuzz/Cargo.lock"] {
        let lock: toml::Table = fs::read_to_string(root.join(lock)).unwrap().parse().unwrap();
        let packages = lock["package"].as_array().unwrap();
        assert!(packages.len() > 100);
        let faults: Vec<_> = packages.iter().filter_map(|it| stranger(it.as_table().unwrap())).collect();
        assert_eq!(faults, Vec::<String>::new());
    }
}

/// Its name, if it is neither this project's nor from the registry with a checksum.
fn stranger(package: &toml::Table) -> Option<String> {
    let name = package["name"].as_str()?;
    let is_own = name == "baton" || name == "baton-fuzz";
    let is_registry = package.get("source").and_then(|it| it.as_str()).is_some_and(|it| it.starts_with("registry+"));
    let has_checksum = package.get("checksum").and_then(|it| it.as_str()).is_some_and(|sum| sum.len() == 64);
    let is_known = is_own || is_registry && has_checksum;
    (!is_known).then(|| name.to_owned())
}

#[test]
fn a_package_from_a_repository_or_without_a_checksum_is_found() {
    let package = |text: &str| text.parse::<toml::Table>().unwrap();
    let sum = "0".repeat(64);
    assert_eq!(stranger(&package("name = \"baton\"")), None);
    assert_eq!(stranger(&package(&format!("name = \"a\"\nsource = \"registry+x\"\nchecksum = \"{sum}\""))), None);
    for other in [
        "name = \"a\"".to_owned(),
        "name = \"a\"\nsource = \"registry+x\"".to_owned(),
        format!("name = \"a\"\nsource = \"git+x\"\nchecksum = \"{sum}\""),
    ] {
        assert_eq!(stranger(&package(&other)).as_deref(), Some("a"), "{other}");
    }
}

#[test]
fn every_licence_is_one_that_a_binary_may_be_given_away_under() {
    let said = cargo(&["tree", "--edges", "normal,build,dev", "--prefix", "none", "--format", "{p}\t{l}"]);
    let lines: BTreeSet<_> = said.lines().filter_map(|line| line.trim_end_matches(" (*)").split_once('\t')).collect();
    assert!(lines.len() > 100, "{said}");
    let faults: Vec<_> = lines.iter().filter(|(_, licence)| !is_allowed(licence)).map(|it| format!("{it:?}")).collect();
    assert_eq!(faults, Vec::<String>::new());
}

/// SPDX 2.3, annex D: OR and its older form, the slash, let one choose; AND does not. Parentheses stand around a choice only.
fn is_allowed(licence: &str) -> bool {
    let choices = |of: &str| of.split(" OR ").flat_map(|it| it.split('/')).any(|one| LICENCES.contains(&one.trim()));
    licence.split(" AND ").all(|all| choices(all.trim().trim_matches(['(', ')'])))
}

#[test]
fn a_licence_that_nobody_chose_is_found() {
    for good in ["MIT", "MIT/Apache-2.0", "GPL-3.0-only OR ISC", "(MIT OR GPL-2.0-only) AND Unicode-3.0"] {
        assert!(is_allowed(good), "{good}");
    }
    for bad in ["", "GPL-3.0-only", "MIT AND GPL-3.0-only", "(MIT OR ISC) AND MPL-2.0", "LGPL-2.1-or-later"] {
        assert!(!is_allowed(bad), "{bad}");
    }
}

/// Each further one is code twice in the binary, and twice the advisories to watch.
#[test]
fn no_further_package_is_in_the_binary_in_two_versions() {
    let said = cargo(&["tree", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"]);
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in said.lines().filter(|line| !line.is_empty()) {
        let mut words = line.split(' ');
        let (name, version) = (words.next().unwrap(), words.next().unwrap());
        versions.entry(name).or_default().insert(version);
    }
    assert!(versions.len() > 100, "{said}");
    let twice: BTreeSet<_> = versions.iter().filter(|(_, all)| all.len() > 1).map(|(name, _)| *name).collect();
    assert_eq!(twice, BTreeSet::from(TWICE));
}

/// What cargo says of this project.
fn cargo(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments).arg("--locked").current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
