//! The sections of haproxy.cfg, and which `defaults` each of them inherits.

use std::collections::BTreeMap;

use super::words::words;
use crate::translate::ledger::Ledger;

/// A line of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directive {
    /// From 0.
    pub line: usize,
    /// At least one; without a leading `no`.
    pub words: Vec<String>,
    /// Whether it begins with `no`.
    pub is_off: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SectionKind {
    Global,
    Defaults,
    Frontend,
    Backend,
    Listen,
    /// Not about connections to servers.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CfgSection {
    pub kind: SectionKind,
    pub line: usize,
    pub keyword: String,
    pub name: String,
    pub directives: Vec<Directive>,
    /// The sections `defaults` that it inherits, the nearest last.
    defaults: Vec<usize>,
}

/// What holds in one section: its own lines and the inherited ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Effective<'c> {
    /// Of several lines with one key, the last counts.
    single: BTreeMap<String, &'c Directive>,
    /// All lines, the inherited ones first.
    all: Vec<&'c Directive>,
}

const OTHERS: [&str; 16] = [
    "resolvers",
    "peers",
    "userlist",
    "program",
    "cache",
    "ring",
    "mailers",
    "http-errors",
    "log-forward",
    "fcgi-app",
    "crt-store",
    "crt-list",
    "traces",
    "acme",
    "log-profile",
    "healthcheck",
];

/// All sections. Lines outside of a section, and those that cannot be read, get their note here.
pub(super) fn sections(text: &str, ledger: &mut Ledger) -> Vec<CfgSection> {
    let mut sections: Vec<CfgSection> = Vec::new();
    for (line, text) in text.lines().enumerate() {
        let Ok(mut words) = words(text) else {
            ledger.missing(line, "a quote is open at its end");
            continue;
        };
        let Some(first) = words.first().cloned() else { continue };
        if let Some(kind) = section_kind(&first) {
            sections.push(section(kind, line, words, &sections, ledger));
        } else if first.starts_with('.') {
            ledger.missing(line, "Baton's file has no conditions: all lines between the conditions were read");
        } else if let Some(section) = sections.last_mut() {
            let is_off = first == "no" && words.len() > 1;
            if is_off {
                words.remove(0);
            }
            section.directives.push(Directive { line, words, is_off });
        } else {
            ledger.missing(line, "it stands before the first section");
        }
    }
    sections
}

fn section_kind(keyword: &str) -> Option<SectionKind> {
    match keyword {
        "global" => Some(SectionKind::Global),
        "defaults" => Some(SectionKind::Defaults),
        "frontend" => Some(SectionKind::Frontend),
        "backend" => Some(SectionKind::Backend),
        "listen" => Some(SectionKind::Listen),
        other => OTHERS.contains(&other).then_some(SectionKind::Other),
    }
}

fn section(
    kind: SectionKind,
    line: usize,
    words: Vec<String>,
    before: &[CfgSection],
    ledger: &mut Ledger,
) -> CfgSection {
    let name = words.get(1).filter(|word| *word != "from").cloned().unwrap_or_default();
    let from = words.iter().position(|word| word == "from").and_then(|at| words.get(at + 1));
    let is_defaults = |at: &usize| before[*at].kind == SectionKind::Defaults;
    let nearest = match from {
        Some(from) => {
            let found = (0..before.len()).rev().filter(is_defaults).find(|at| before[*at].name == *from);
            if found.is_none() {
                ledger.missing(line, format!("there is no defaults {from} before it"));
            }
            found
        }
        // A section `defaults` begins anew unless it names another.
        None if kind == SectionKind::Defaults => None,
        None => (0..before.len()).rev().find(is_defaults),
    };
    let defaults = nearest.map_or(Vec::new(), |at| before[at].defaults.iter().copied().chain([at]).collect());
    CfgSection { kind, line, keyword: words[0].clone(), name, directives: Vec::new(), defaults }
}

impl CfgSection {
    pub(super) fn effective<'c>(&'c self, all: &'c [CfgSection]) -> Effective<'c> {
        let mut effective = Effective::default();
        let inherited = self.defaults.iter().flat_map(|at| &all[*at].directives);
        for directive in inherited.chain(&self.directives) {
            let key = directive.key();
            match directive.is_off {
                true => drop(effective.single.remove(&key)),
                false => drop(effective.single.insert(key, directive)),
            }
            effective.all.push(directive);
        }
        effective
    }

    /// The lines of `key`, in their order.
    pub(super) fn own<'c>(&'c self, key: &'c str) -> impl Iterator<Item = &'c Directive> {
        self.directives.iter().filter(move |directive| directive.words[0] == key)
    }
}

impl Directive {
    /// Its first word; its first two if the second chooses the setting.
    fn key(&self) -> String {
        match (&*self.words[0], self.words.get(1)) {
            ("option" | "timeout" | "stats", Some(second)) => format!("{} {second}", self.words[0]),
            (first, _) => first.to_owned(),
        }
    }

    pub(super) fn word(&self, at: usize) -> &str {
        self.words.get(at).map_or("", String::as_str)
    }
}

impl<'c> Effective<'c> {
    pub(super) fn find(&self, key: &str) -> Option<&'c Directive> {
        self.single.get(key).copied()
    }

    /// All lines of `key`, the inherited ones first.
    pub(super) fn each<'e>(&'e self, key: &'e str) -> impl Iterator<Item = &'c Directive> + 'e {
        self.all.iter().copied().filter(move |directive| directive.words[0] == key)
    }

    /// All lines, the inherited ones first.
    pub(super) fn all(&self) -> impl Iterator<Item = &'c Directive> + '_ {
        self.all.iter().copied()
    }

    /// The mode of the section: haproxy's default is tcp.
    pub(super) fn mode(&self) -> &'c str {
        self.find("mode").map_or("tcp", |directive| directive.word(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate::ForeignFile;

    fn read(text: &str) -> (Vec<CfgSection>, Ledger) {
        let file = ForeignFile { name: "f".to_owned(), text: text.to_owned() };
        let mut ledger = Ledger::new(&file);
        (sections(text, &mut ledger), ledger)
    }

    #[test]
    fn a_section_inherits_the_defaults_before_it_or_those_that_it_names() {
        let text = "defaults a\n retries 1\n option tcpka\ndefaults b from a\n retries 2\ndefaults\n retries 3\n\
                    frontend x from b\n no option tcpka\nbackend y\n";
        let (sections, _) = read(text);
        let retries = |name: &str| {
            let section = sections.iter().find(|it| it.name == name).unwrap();
            section.effective(&sections).find("retries").unwrap().word(1).to_owned()
        };
        assert_eq!((retries("x"), retries("y")), ("2".to_owned(), "3".to_owned()));
        let x = sections.iter().find(|it| it.name == "x").unwrap();
        assert!(x.effective(&sections).find("option tcpka").is_none());
    }

    #[test]
    fn what_stands_outside_of_a_section_is_named() {
        let (sections, ledger) = read("bind :1\n.if A\nglobal\n a \"b\nfrontend x from nobody\n");
        assert_eq!(sections.len(), 2);
        let named: Vec<_> = ledger.lines().iter().map(|line| line.changes_behaviour()).collect();
        assert_eq!(named, [true, true, false, true, true]);
    }
}
