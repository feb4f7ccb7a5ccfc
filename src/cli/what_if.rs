//! `baton what-if`: what a death or a restart would do to clients, by the flows and timers of now.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};

use super::grid::{Align::*, Cell, Grid};
use super::output::{CliError, Output};
use super::shell;
use crate::admin::client::Client;
use crate::admin::protocol::Command;
use crate::admin::what_if::{ExpectedGap, WhatIfCase, WhatIfReport, WhatIfRequest};
use crate::model::duration::display;
use crate::model::humane::{count, duration_ms, plural};
use crate::model::weight::Weight;
use crate::model::what_if::Happening;

#[derive(Clone, Debug, Args)]
pub(super) struct WhatIfArguments {
    /// An instance, a backend or `apiservers`, then what happens: `lb-a dies`, `cp2 dies`, `apiservers restart`.
    #[arg(required = true, num_args = 1.., value_name = "WORDS", add = candidates())]
    words: Vec<String>,
}

fn candidates() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let fixed = ["apiservers", "this", "dies", "restart"].map(str::to_owned);
        shell::known_backends()
            .into_iter()
            .chain(shell::known_peers())
            .chain(fixed)
            .map(CompletionCandidate::new)
            .collect()
    })
}

pub(super) fn what_if(client: &mut Client, arguments: &WhatIfArguments, output: &Output) -> Result<ExitCode, CliError> {
    let asked = request(&arguments.words).map_err(CliError::Usage)?;
    let report: WhatIfReport = client.ask(&Command::WhatIf(asked))?;
    match output.json {
        true => output.document(&report)?,
        false => output.wrapped(&in_words(&report, output))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The subject is what stands before the first words that say what happens.
fn request(words: &[String]) -> Result<WhatIfRequest, String> {
    let words: Vec<_> = words.iter().flat_map(|words| words.split_whitespace()).collect();
    let split = (1..words.len()).find_map(|at| Some((at, words[at..].join(" ").parse::<Happening>().ok()?)));
    match split {
        Some((at, happens)) => Ok(WhatIfRequest { subject: words[..at].join(" "), happens }),
        None => Err(format!(
            "{:?} does not say what happens to what; allowed: INSTANCE dies, BACKEND dies, BACKEND restarts, apiservers restart, apiservers die",
            words.join(" ")
        )),
    }
}

fn in_words(report: &WhatIfReport, output: &Output) -> String {
    let clients = report.clients.map_or(String::new(), |clients| format!(", of {}", plural(clients, "client")));
    let of = match report.of_subject == report.flows {
        true => plural(report.flows, "flow"),
        false => format!("{} of {}", count(report.of_subject), plural(report.flows, "flow")),
    };
    let has = if report.subject.ends_with(" backends") { "have" } else { "has" };
    let mut text = format!("{} {has} {of}{clients}.\n", output.bold(&report.subject));
    let mut grid = Grid::new(&[
        ("IF", Left),
        ("KEPT", Right),
        ("MOVED", Right),
        ("RESET", Right),
        ("OVER", Right),
        ("WAITING", Right),
        ("LONGEST GAP", Right),
        ("", Left),
    ])
    .spare(&["OVER"]);
    report.cases.iter().for_each(|case| grid.row(row(case, report.grace_period_ms)));
    text += &grid.render(output);
    for case in &report.cases {
        text += &format!("{}: {}\n", case.fault, decided(&case.gap));
    }
    report.notes.iter().for_each(|note| text += &format!("{note}\n"));
    text
}

fn row(case: &WhatIfCase, grace_period_ms: u64) -> [Cell; 8] {
    let gap_ms = case.gap.lasts_ms();
    let gap = gap_ms.map_or_else(|| "?".to_owned(), spelled);
    let (weight, verdict) = match gap_ms {
        None => (Weight::Plain, ""),
        Some(gap_ms) if gap_ms <= grace_period_ms => (Weight::Good, "ok"),
        Some(_) => (Weight::Bad, "NotReady"),
    };
    let Some(fates) = &case.fates else {
        let unknown = || Cell::from("?");
        return [
            case.fault.clone().into(),
            unknown(),
            unknown(),
            unknown(),
            "-".into(),
            unknown(),
            gap.into(),
            Cell::painted(weight, verdict),
        ];
    };
    let bad = |number: u64| Cell::painted(if number > 0 { Weight::Bad } else { Weight::Plain }, count(number));
    let over =
        if fates.reset > 0 && case.resets_over_ms > 0 { duration_ms(case.resets_over_ms) } else { "-".to_owned() };
    [
        case.fault.clone().into(),
        count(fates.kept).into(),
        count(fates.moved).into(),
        bad(fates.reset),
        over.into(),
        bad(fates.waiting),
        gap.into(),
        Cell::painted(weight, verdict),
    ]
}

/// `12.25s = 10s (cluster.lease_renew = 10s) + 2.25s (...)`.
pub(super) fn decided(gap: &ExpectedGap) -> String {
    match gap {
        ExpectedGap::Unknown(why) => why.clone(),
        ExpectedGap::Decided(parts) => {
            let all: Vec<_> = parts.iter().map(|it| format!("{} ({})", spelled(it.lasts_ms), it.setting)).collect();
            format!("{} = {}", spelled(gap.lasts_ms().unwrap_or(0)), all.join(" + "))
        }
    }
}

fn spelled(ms: u64) -> String {
    display(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::what_if::GapSetting;
    use crate::cli::samples;
    use crate::model::what_if::FlowFates;

    #[test]
    fn the_words_before_what_happens_are_the_subject_and_an_error_names_what_is_allowed() {
        let asked = |text: &str| request(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let of = |subject: &str, happens| Ok(WhatIfRequest { subject: subject.to_owned(), happens });
        assert_eq!(asked("lb-a dies"), of("lb-a", Happening::Dies));
        assert_eq!(asked("cp2 is gone"), of("cp2", Happening::Dies));
        assert_eq!(asked("all apiservers restart"), of("all apiservers", Happening::Restarts));
        assert_eq!(request(&["apiservers restart".to_owned()]), of("apiservers", Happening::Restarts));
        for bad in ["lb-a", "dies", "cp2 melts"] {
            let said = asked(bad).unwrap_err();
            assert!(said.contains("allowed: INSTANCE dies, BACKEND dies"), "{said}");
        }
    }

    #[test]
    fn the_documents_show_what_is_printed_of_a_death() {
        let gap = |parts: &[(u64, &str)]| {
            let setting = |&(lasts_ms, setting): &(u64, &str)| GapSetting { lasts_ms, setting: setting.to_owned() };
            ExpectedGap::Decided(parts.iter().map(setting).collect())
        };
        let lease = (10_000, "cluster.lease_renew = 10s");
        let probes = "[frontend.health] interval = 1s, timeout = 500ms, reset_fall = 2, fast_interval = 250ms, and process.reset_within = 250ms";
        let case = |fault: &str, resets_over_ms, gap| WhatIfCase {
            fault: fault.to_owned(),
            fates: Some(FlowFates { kept: 60, moved: 0, reset: 30, waiting: 0 }),
            resets_over_ms,
            gap,
        };
        let report = WhatIfReport {
            subject: "apiserver/cp2".to_owned(),
            happens: Happening::Dies,
            flows: 90,
            of_subject: 30,
            clients: Some(28),
            grace_period_ms: 40_000,
            cases: vec![
                case("apiserver killed", 0, gap(&[lease])),
                case("apiserver hung", 250, gap(&[lease, (2250, probes)])),
                case("apiserver's host gone", 250, gap(&[lease, (2250, probes)])),
            ],
            notes: vec!["Clients that are reset connect again to cp1, cp3.".to_owned()],
        };
        assert_eq!(samples::shown("docs/operate.md", "baton what-if cp2 dies"), in_words(&report, &Output::new(false)));
    }
}
