//! `baton check`: everything that is wrong with a configuration file, from the daemon's own loader.

mod host;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::output::{CliError, Output, colours, columns};
use super::wrap::wrap;
use crate::config::budget::{BudgetHost, FrontendBudget, LongestGap};
use crate::config::{self, Cluster, Config, Severity};
use crate::model::budget::{BudgetFault, lasts};
use crate::model::duration::display;
use crate::preflight::{self, sysctl_file};
use crate::sys::{process, rights};

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct CheckArguments {
    /// Also checks whether this host can offload flows and have a VIP, and prints a fix for each fault.
    #[arg(long)]
    host: bool,
    /// keepalived's configuration [default: /etc/keepalived/keepalived.conf, if it is there].
    #[arg(long, value_name = "FILE")]
    keepalived: Option<PathBuf>,
    /// Writes the kernel settings for this host to a file for sysctl.d, and prints how to apply it.
    #[arg(long, value_name = "FILE", requires = "host", num_args = 0..=1, require_equals = true,
          default_missing_value = sysctl_file::DEFAULT)]
    fix: Option<PathBuf>,
}

impl CheckArguments {
    /// Of `baton check --host`.
    pub(super) fn of_host() -> Self {
        Self { host: true, keepalived: None, fix: None }
    }
}

/// Checks the file at `path`: findings to stderr, the verdict to stdout; in JSON, both to stdout. 0: it is valid; 1: it
/// has errors, or keepalived's file, if it is named, cannot be read. With `--host`, it checks this host too. An obstacle to
/// offload is no error, because flows then stay proxied; a fault that may leave clients waiting is one.
pub(crate) fn run(path: &Path, arguments: &CheckArguments, json: bool) -> ExitCode {
    // What it reads with rights, for the check before an upgrade, must get into no core dump of its user's.
    if rights::read_every_file() {
        process::keep_memory_private();
    }
    // With --host it is a fault among the others.
    if let Some(file) = arguments.keepalived.as_deref().filter(|_| !arguments.host)
        && let Some(error) = preflight::keepalived_fault(file)
    {
        return Output::new(json).fail(&CliError::path(file, error));
    }
    let report = if json && !arguments.host {
        document(path, &mut io::stdout().lock())
    } else {
        let host = preflight::budget_host(arguments.keepalived.as_deref());
        report(path, &host, colours(&io::stderr()), columns(), &mut io::stdout().lock(), &mut io::stderr().lock())
    };
    let report = report.and_then(|taken| {
        if !arguments.host {
            return Ok(taken);
        }
        let mut out = io::stdout().lock();
        let config = config::load(path).ok().map(|loaded| loaded.config);
        if config.is_none() && !json {
            writeln!(out, "\nThis host, without what depends on the file:")?;
        }
        let sound = host::report(config.as_ref(), arguments, json, &mut out, &mut io::stderr().lock())?;
        Ok(taken && sound)
    });
    match report {
        Ok(true) => ExitCode::SUCCESS,
        // Even the findings could not be written: nobody may take that for a pass.
        Ok(false) | Err(_) => ExitCode::FAILURE,
    }
}

/// The verdict and the findings of `baton check --host`, without lines of the file, which may have secrets.
pub(super) fn host_in_words(path: &Path) -> io::Result<String> {
    let arguments = CheckArguments::of_host();
    let mut out = Vec::new();
    report(path, &preflight::budget_host(None), false, None, &mut out, &mut io::sink())?;
    // Without the lines of the file, which may have a secret.
    let (config, findings) = match config::load(path) {
        Ok(loaded) => (Some(loaded.config), loaded.warnings),
        Err(rejected) => (None, [rejected.errors, rejected.warnings].concat()),
    };
    for finding in findings {
        let severity = if finding.severity == Severity::Error { "error" } else { "warning" };
        writeln!(out, "{severity}: {finding}")?;
    }
    writeln!(out)?;
    host::report(config.as_ref(), &arguments, false, &mut out, &mut io::sink())?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// Writes all findings, with their places, as one JSON document; returns whether the file is valid.
fn document(path: &Path, out: &mut impl Write) -> io::Result<bool> {
    let (taken, errors, warnings) = match config::load(path) {
        Ok(loaded) => (true, Vec::new(), loaded.warnings),
        Err(rejected) => (false, rejected.errors, rejected.warnings),
    };
    let document = serde_json::json!({ "taken": taken, "errors": errors, "warnings": warnings });
    writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
    Ok(taken)
}

/// Writes the findings, then the verdict; returns whether the file is valid.
fn report(
    path: &Path,
    host: &BudgetHost,
    colour: bool,
    width: Option<usize>,
    verdict: &mut impl Write,
    findings: &mut impl Write,
) -> io::Result<bool> {
    match config::load(path) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                writeln!(findings, "{}\n", warning.render(colour))?;
            }
            writeln!(verdict, "ok: {}{}", contents(&loaded.config), warned(loaded.warnings.len()))?;
            write!(verdict, "\n{}", wrap(&budget(&loaded.config, host), width))?;
            Ok(true)
        }
        Err(rejected) => {
            write!(findings, "{}", rejected.render(colour))?;
            let errors = count(rejected.errors.len(), "error");
            writeln!(verdict, "rejected: {errors}{}", warned(rejected.warnings.len()))?;
            Ok(false)
        }
    }
}

/// The time that each fault may cost the nodes, by the file's own timers. Without an interval of adverts in the file,
/// keepalived's own counts.
fn budget(config: &Config, host: &BudgetHost) -> String {
    let Cluster { node_monitor_grace_period: grace, lease_renew, .. } = config.cluster;
    let mut text = format!(
        "Longest time without a heartbeat, if they come every {} and a node is NotReady after {}:\n",
        display(lease_renew),
        display(grace)
    );
    for frontend in &config.frontends {
        let budget = FrontendBudget::new(config, frontend, host);
        let is_stacked = budget.is_stacked();
        let title = if config.frontends.len() > 1 { &*frontend.name } else { "" };
        for fault in BudgetFault::ALL {
            let is_of_both = fault == BudgetFault::StackedHostDies;
            if is_of_both && !is_stacked {
                continue;
            }
            let gap = match budget.longest(fault) {
                LongestGap::Parts(parts) => Ok(lasts(&parts)),
                LongestGap::NoVip => Err(("-", "its clients are on this host: no VIP moves")),
                LongestGap::OwnAddress => Err(("-", "no VIP: clients wait until this host serves again")),
                LongestGap::VipStays => {
                    Err(("-", "NotReady: the VIP stays: no track_script of keepalived's runs `baton ready`"))
                }
                LongestGap::Routers => {
                    Err(("?", "as long as the routers take to leave this host: their BFD or hold time"))
                }
                LongestGap::Unknown => {
                    Err(("?", "depends on how the VIP moves: set cluster.vrrp_advert_interval, or [vip]"))
                }
            };
            let (gap, verdict) = match gap {
                Err((mark, why)) => (mark.to_owned(), why),
                Ok(gap) if gap <= grace => (display(gap), "ok"),
                Ok(gap) if fault == BudgetFault::ApiserverHung && !budget.probes_ask_the_process() => {
                    (display(gap), "NotReady: kind = \"tcp\" tests only the kernel; kind = \"https\" finds it")
                }
                Ok(gap) => (display(gap), "NotReady: shorten the timers"),
            };
            let ends = if is_of_both {
                format!("; its apiserver's connections end, about 1 of {}", frontend.backends.len())
            } else {
                String::new()
            };
            text += format!("  {title:<12} {:<22} {gap:>7}  {verdict}{ends}\n", fault.label())
                .trim_start_matches("             ");
        }
    }
    text
}

fn contents(config: &Config) -> String {
    let backends = config.frontends.iter().map(|frontend| frontend.backends.len()).sum();
    let discovering = config.frontends.iter().filter(|frontend| frontend.discover.is_some()).count();
    let more = if discovering == 0 { "" } else { " beside those that are discovered" };
    format!("{}, {}{more}", count(config.frontends.len(), "frontend"), count(backends, "backend"))
}

fn warned(warnings: usize) -> String {
    if warnings == 0 { String::new() } else { format!(", {}", count(warnings, "warning")) }
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const FILE: &str = "[cluster]\nCLUSTER\n[[frontend]]\nname = \"f\"\nlisten = [\"LISTEN\"]\n\
        [[frontend.backend]]\nname = \"a\"\naddress = \"10.0.0.1:1\"\n\
        [[frontend.backend]]\nname = \"b\"\naddress = \"10.0.0.2:1\"\n";

    fn check(text: &str) -> (bool, String, String) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("baton.toml");
        std::fs::write(&path, text).unwrap();
        let (mut verdict, mut findings) = (Vec::new(), Vec::new());
        let taken = report(&path, &BudgetHost::default(), false, None, &mut verdict, &mut findings).unwrap();
        let findings = String::from_utf8(findings).unwrap().replace(&format!("{}/", directory.path().display()), "");
        (taken, String::from_utf8(verdict).unwrap(), findings)
    }

    #[test]
    fn a_file_with_warnings_only_passes() {
        let text = "[[frontend]]\nname = \"f\"\nlisten = [\"127.0.0.1:1\"]\n[[frontend.backend]]\nname = \"b\"\naddress = \"10.0.0.1:1\"";
        let (taken, verdict, findings) = check(text);
        assert!(taken);
        assert!(verdict.starts_with("ok: 1 frontend, 1 backend, 1 warning\n"), "{verdict}");
        let expected = "\
warning: frontend \"f\" has one backend only
 --> baton.toml:4:1
  |
4 | [[frontend.backend]]
  | ^^^^^^^^^^^^^^^^^^^^ add a second backend: when this one fails, Baton resets all flows

";
        assert_eq!(findings, expected);
    }

    #[test]
    fn the_budget_is_computed_from_the_files_own_timers() {
        let file = |cluster: &str, health: &str| {
            format!(
                "[cluster]\n{cluster}\n[[frontend]]\nname = \"f\"\nlisten = [\"10.0.0.100:1\"]\n[frontend.health]\n{health}\n\
                 [[frontend.backend]]\nname = \"a\"\naddress = \"10.0.0.1:1\"\n\
                 [[frontend.backend]]\nname = \"b\"\naddress = \"10.0.0.2:1\"\n"
            )
        };
        let (_, defaults, _) = check(&file("", ""));
        insta::assert_snapshot!(defaults);
        let fast = "profile = \"fast\"\nvrrp_advert_interval = \"2s\"";
        let (_, tuned, _) = check(&file(fast, "kind = \"http\"\ninterval = \"500ms\""));
        insta::assert_snapshot!(tuned);
        let vip = "vrrp_advert_interval = \"2s\"\n[vip]\naddresses = [\"10.0.0.100/32\"]\ninterface = \"eth0\"";
        let (_, built_in, _) = check(&file(vip, ""));
        assert!(built_in.contains("  Baton's host gone        11.2s  ok\n"), "{built_in}");
    }

    #[test]
    fn the_budget_takes_keepalived_s_own_interval_unless_the_file_has_one() {
        let keepalived = tempfile::NamedTempFile::new().unwrap();
        let instance = |name: &str, interval: &str| format!("vrrp_instance {name} {{\n  advert_int {interval}\n}}\n");
        std::fs::write(&keepalived, instance("a", "0.1") + &instance("b", "0.5")).unwrap();
        let adverts = preflight::budget_host(Some(keepalived.path())).adverts;
        assert_eq!(adverts, Some(Duration::from_millis(500)), "the longest");
        let row = |text: &str| {
            let config =
                config::parse(&FILE.replace("LISTEN", "10.0.0.100:1").replace("CLUSTER", text), Path::new("f"));
            let host = BudgetHost { adverts, ..BudgetHost::default() };
            let budget = budget(&config.unwrap().config, &host);
            budget.lines().find(|line| line.contains("Baton's host gone")).unwrap().trim().to_owned()
        };
        assert_eq!(row(""), row("vrrp_advert_interval = \"500ms\""));
        assert_ne!(row(""), row("vrrp_advert_interval = \"100ms\""), "the file's own comes first");
        assert!(!row("").contains('?'), "{}", row(""));
        std::fs::write(&keepalived, "").unwrap();
        assert_eq!(preflight::budget_host(Some(keepalived.path())).adverts, None);
    }

    /// Only `advert_int` counted: the VIP was said to leave in 16.4 s what no script takes it from.
    #[test]
    fn the_budget_of_a_vip_that_no_script_takes_away_is_not_ok() {
        const SHIPPED: &str = include_str!("../../deploy/keepalived/keepalived.conf");
        let rows = |keepalived: &str, cluster: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(&file, keepalived).unwrap();
            let text = FILE.replace("LISTEN", "10.0.0.100:1").replace("CLUSTER", cluster);
            let config = config::parse(&text, Path::new("f")).unwrap().config;
            let budget = budget(&config, &preflight::budget_host(Some(file.path())));
            let row =
                |fault: &str| budget.lines().find(|line| line.contains(fault)).unwrap_or_default().trim().to_owned();
            [row("Baton killed"), row("Baton hung"), row("Baton's host gone"), row("host evacuated")]
        };
        let [killed, hung, host, evacuated] = rows(SHIPPED, "");
        assert!(evacuated.ends_with("  ok"), "{evacuated}");
        assert!(killed.ends_with("16.4s  ok") && hung.ends_with("16.4s  ok") && host.ends_with("11s  ok"), "{killed}");
        for (from, to) in [
            ("track_script {\n        baton\n    }", ""),
            ("/usr/bin/baton ready --within 500ms", "/bin/true"),
            ("vrrp_script baton {", "vrrp_script other {"),
        ] {
            assert!(SHIPPED.contains(from), "{from}");
            for cluster in ["", "vrrp_advert_interval = \"100ms\""] {
                let [killed, hung, host, evacuated] = rows(&SHIPPED.replace(from, to), cluster);
                for row in [killed, hung, evacuated] {
                    assert!(row.contains("NotReady: the VIP stays") && !row.contains('?'), "{to}: {row}");
                }
                assert!(host.ends_with("11s  ok"), "{host}");
            }
        }
        let slow = SHIPPED.replace("interval 0.5", "interval 3");
        assert!(rows(&slow, "")[0].ends_with("26.4s  ok"), "{:?}", rows(&slow, ""));
        assert!(rows(&slow, "vrrp_advert_interval = \"100ms\"")[0].contains("16.4s"), "the file's own comes first");
        let defaults = "vrrp_script b {\n script \"baton ready\"\n}\nvrrp_instance a {\n advert_int 0.1\n track_script {\n b\n }\n}\n";
        assert!(rows(defaults, "")[0].ends_with("14.4s  ok"), "{:?}", rows(defaults, ""));
        let quoted =
            SHIPPED.replace("\"/usr/bin/baton ready --within 500ms\"", "'/usr/bin/baton ready --within 500ms'");
        assert!(rows(&quoted, "")[0].ends_with("16.4s  ok"), "{:?}", rows(&quoted, ""));
    }

    #[test]
    fn the_budget_does_not_ask_how_a_loopback_address_moves() {
        let config = config::parse(&FILE.replace("LISTEN", "127.0.0.1:1").replace("CLUSTER", ""), Path::new("f"));
        let budget = budget(&config.unwrap().config, &BudgetHost::default());
        assert!(!budget.contains('?'), "{budget}");
        let no_vip = budget.lines().filter(|line| line.ends_with("its clients are on this host: no VIP moves"));
        assert_eq!(no_vip.count(), 4, "{budget}");
    }

    #[test]
    fn the_budget_asks_for_no_vip_where_the_host_s_own_address_is_served() {
        let rows = |listen: &str, cluster: &str, adverts| {
            let text = FILE.replace("LISTEN", listen).replace("CLUSTER", cluster);
            let config = config::parse(&text, Path::new("f")).unwrap().config;
            let own = vec!["10.0.0.5".parse().unwrap()];
            let budget = budget(&config, &BudgetHost { adverts, own, ..BudgetHost::default() });
            let no_vip = "no VIP: clients wait until this host serves again";
            (
                budget.lines().filter(|line| line.ends_with(no_vip)).count(),
                budget.contains("set cluster.vrrp_advert_interval"),
            )
        };
        assert_eq!(rows("10.0.0.5:1", "", None), (4, false));
        assert_eq!(rows("10.0.0.6:1", "", None), (0, true));
        // keepalived's VIP may look like an own address.
        assert_eq!(rows("10.0.0.5:1", "", Some(Duration::from_secs(1))), (0, false));
        assert_eq!(rows("10.0.0.5:1", "vrrp_advert_interval = \"1s\"", None), (0, false));
        let vip = |ip: &str| format!("[vip]\naddresses = [\"{ip}\"]\ninterface = \"eth0\"");
        assert_eq!(rows("10.0.0.5:1", &vip("10.0.0.5"), None), (0, false));
        assert_eq!(rows("10.0.0.5:1", &vip("10.0.0.7"), None), (4, false));
    }

    /// Regression: behind routers, it asked for keepalived's timers or `[vip]`.
    #[test]
    fn the_budget_names_the_routers_of_a_vip_that_is_on_the_loopback_interface() {
        let text = FILE.replace("LISTEN", "10.99.0.100:1").replace("CLUSTER", "");
        let config = config::parse(&text, Path::new("f")).unwrap().config;
        let routed = vec!["10.99.0.100".parse().unwrap()];
        let budget = budget(&config, &BudgetHost { routed, ..BudgetHost::default() });
        let by_routers = budget.lines().filter(|line| line.ends_with("their BFD or hold time"));
        assert_eq!(by_routers.count(), 4, "{budget}");
        assert!(!budget.contains("vrrp_advert_interval"), "{budget}");
    }

    #[test]
    fn the_budget_names_the_death_of_a_host_that_has_an_instance_and_a_backend() {
        let key = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&key, config::PeerKey([7; 32]).spell()).unwrap();
        let file = |backend: &str| {
            format!(
                "[cluster]\nvrrp_advert_interval = \"100ms\"\n[instance]\nname = \"a\"\n[peers]\nlisten = \"10.0.0.1:9\"\nkey_file = {:?}\n\
                 [[peers.peer]]\nname = \"b\"\naddress = \"10.0.0.2:9\"\n\
                 [[frontend]]\nname = \"f\"\nlisten = [\"10.0.0.100:1\"]\n\
                 [[frontend.backend]]\nname = \"a\"\naddress = \"10.0.0.9:1\"\n\
                 [[frontend.backend]]\nname = \"b\"\naddress = \"{backend}:1\"\n",
                key.path()
            )
        };
        let row = |backend: &str| {
            let (taken, verdict, findings) = check(&file(backend));
            assert!(taken, "{findings}");
            verdict.lines().find(|line| line.contains("stacked")).map(|line| line.trim().to_owned())
        };
        let expected = "stacked host gone       12.25s  ok; its apiserver's connections end, about 1 of 2";
        assert_eq!(["10.0.0.1", "10.0.0.2"].map(row), [Some(expected.to_owned()), Some(expected.to_owned())]);
        assert_eq!(row("10.0.0.8"), None);
    }

    #[test]
    fn every_error_has_its_line_before_the_verdict() {
        let (taken, verdict, findings) = check("[log]\nlevel = 5\n\n[admin]\nhtp = \"\"\n");
        assert!(!taken);
        assert_eq!(verdict, "rejected: 3 errors\n");
        let places: Vec<_> = findings.lines().filter_map(|line| line.trim_start().strip_prefix("--> ")).collect();
        assert_eq!(places, ["baton.toml:1:1", "baton.toml:2:9", "baton.toml:5:1"]);
    }

    #[test]
    fn a_machine_reads_the_place_and_the_words_of_each_finding() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("baton.toml");
        std::fs::write(&path, "[log]\nlevel = 5\n").unwrap();
        let mut out = Vec::new();
        assert!(!document(&path, &mut out).unwrap());
        let told: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let level = &told["errors"][1];
        assert_eq!((&told["taken"], &level["line"], &level["column"]), (&false.into(), &2.into(), &9.into()));
        assert_eq!((level["key"].as_str(), level["severity"].as_str()), (Some("log.level"), Some("error")));
        assert_eq!(level["message"], "invalid value for \"level\" in [log]");
        assert_eq!(level["help"], "expected one of \"error\", \"warn\", \"info\", \"debug\"; found 5");
    }
}
