//! Directives that need no key of Baton's, and those that have no equal whatever their values are.

use super::sections::{Directive, SectionKind};

/// What a directive means for Baton before its values are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// It may become a key.
    Setting,
    Kept(&'static str),
    /// Connections are treated in the same way without it.
    NoEqual(&'static str),
    /// Connections are treated in another way without it.
    Missing(&'static str),
}

use Meaning::*;

const LOGS: &str = "Baton logs to standard error, which journald reads: [log] says what";
const HTTP: &str = "it acts on HTTP, and Baton passes TCP through unchanged";
const PROCESS: &str = "the service manager does so: see deploy/baton.service";
const STATS: &str = "Baton shows its state at admin.http and by `baton status`";
const TLS: &str = "Baton ends no TLS: clients' TLS goes through to the backends";
const CONDITION: &str =
    "Baton decides by addresses alone: write the networks into \"allow\" and \"deny\" of the frontend";
const STICK: &str = "Baton keeps no table of clients: balance = \"source_hash\" sends a client to the same backend";
const QUEUE: &str = "Baton has no queue: a new connection goes to a backend that has room, or is reset at once";
const KEEPALIVE: &str = "Baton sends keepalives on both sides: keepalive_idle, keepalive_interval";
const MAIL: &str = "Baton raises alerts by its metrics: deploy/prometheus";

/// Settings that other files of this room read.
const SETTINGS: [&str; 36] = [
    "bind",
    "default_backend",
    "use_backend",
    "server",
    "server-template",
    "default-server",
    "balance",
    "tcp-request connection",
    "tcp-request session",
    "tcp-request content",
    "retries",
    "maxconn",
    "timeout connect",
    "timeout client",
    "timeout server",
    "timeout tunnel",
    "timeout check",
    "option httpchk",
    "option tcp-check",
    "option ssl-hello-chk",
    "http-check",
    "tcp-check",
    "source",
    "nbthread",
    "hard-stop-after",
    "spread-checks",
    "clitcpka-idle",
    "clitcpka-intvl",
    "clitcpka-cnt",
    "srvtcpka-idle",
    "srvtcpka-intvl",
    "srvtcpka-cnt",
    "disabled",
    "ssl-server-verify",
    "ca-base",
    "mode",
];

/// By the first word, or the first two.
const PROXIES: &[(&str, Meaning)] = &[
    ("option redispatch", Kept("every further attempt goes to another backend")),
    ("option tcpka", Kept(KEEPALIVE)),
    ("option clitcpka", Kept(KEEPALIVE)),
    ("option srvtcpka", Kept(KEEPALIVE)),
    ("option splice-auto", Kept("Baton moves bulk data through pipes, and offloads flows to the kernel")),
    ("option splice-request", Kept("Baton moves bulk data through pipes, and offloads flows to the kernel")),
    ("option splice-response", Kept("Baton moves bulk data through pipes, and offloads flows to the kernel")),
    ("option tcp-smart-accept", Kept("Baton leaves a client's first bytes in its socket until a backend is connected")),
    ("option tcp-smart-connect", Kept("Baton passes on bytes as they come")),
    ("option nolinger", Kept("Baton keeps no closed connection waiting")),
    ("option log-health-checks", Kept("`baton events` and the log have every change of a backend's state")),
    ("option abortonclose", Kept("a connection whose client has gone is not connected to a backend")),
    ("option allbackups", NoEqual("Baton has no backup servers")),
    ("option transparent", Missing("Baton connects to the frontend's backends only")),
    ("option persist", NoEqual("Baton sends no connection to a backend that is down")),
    ("option originalto", NoEqual(HTTP)),
    ("option external-check", Missing("Baton runs no program as a probe; it probes by tcp, tls, http or https")),
    ("option mysql-check", Missing("Baton probes by tcp, tls, http or https")),
    ("option pgsql-check", Missing("Baton probes by tcp, tls, http or https")),
    ("option redis-check", Missing("Baton probes by tcp, tls, http or https")),
    ("option smtpchk", Missing("Baton probes by tcp, tls, http or https")),
    ("option ldap-check", Missing("Baton probes by tcp, tls, http or https")),
    ("option spop-check", Missing("Baton probes by tcp, tls, http or https")),
    ("option tcplog", NoEqual(LOGS)),
    ("option httplog", NoEqual(LOGS)),
    ("option httpslog", NoEqual(LOGS)),
    ("option dontlognull", NoEqual(LOGS)),
    ("option dontlog-normal", NoEqual("log.flows = \"errors\" is the same for all frontends together")),
    ("option log-separate-errors", NoEqual(LOGS)),
    ("option logasap", NoEqual(LOGS)),
    ("option socket-stats", NoEqual(STATS)),
    ("option contstats", NoEqual(STATS)),
    ("option ", NoEqual(HTTP)),
    ("log", NoEqual(LOGS)),
    ("log-format", NoEqual(LOGS)),
    ("log-format-sd", NoEqual(LOGS)),
    ("error-log-format", NoEqual(LOGS)),
    ("log-tag", NoEqual(LOGS)),
    ("log-steps", NoEqual(LOGS)),
    ("unique-id-format", NoEqual(LOGS)),
    ("unique-id-header", NoEqual(HTTP)),
    ("capture", NoEqual(HTTP)),
    ("cookie", NoEqual(HTTP)),
    ("compression", NoEqual(HTTP)),
    ("errorfile", NoEqual(HTTP)),
    ("errorfiles", NoEqual(HTTP)),
    ("errorloc", NoEqual(HTTP)),
    ("errorloc302", NoEqual(HTTP)),
    ("errorloc303", NoEqual(HTTP)),
    ("http-error", NoEqual(HTTP)),
    ("http-request", NoEqual(HTTP)),
    ("http-response", NoEqual(HTTP)),
    ("http-after-response", NoEqual(HTTP)),
    ("http-reuse", NoEqual(HTTP)),
    ("http-send-name-header", NoEqual(HTTP)),
    ("max-keep-alive-queue", NoEqual(HTTP)),
    ("redirect", NoEqual(HTTP)),
    ("filter", NoEqual(HTTP)),
    ("timeout http-request", NoEqual(HTTP)),
    ("timeout http-keep-alive", NoEqual(HTTP)),
    ("timeout tarpit", NoEqual(HTTP)),
    ("timeout queue", NoEqual(QUEUE)),
    ("timeout client-fin", NoEqual("user_timeout limits how long the end of a connection takes")),
    ("timeout server-fin", NoEqual("user_timeout limits how long the end of a connection takes")),
    ("timeout client-hs", NoEqual(TLS)),
    ("fullconn", Missing(QUEUE)),
    ("stats ", NoEqual(STATS)),
    ("stats", NoEqual(STATS)),
    ("monitor-uri", NoEqual("Baton answers /livez and /readyz at admin.http: point that monitor there")),
    (
        "monitor-net",
        Missing("Baton passes every connection on, also those of a monitor; `baton ready` and /readyz answer one"),
    ),
    ("monitor", NoEqual("Baton answers /livez and /readyz at admin.http: point that monitor there")),
    ("acl", NoEqual("a condition is named where it is used")),
    ("tcp-request inspect-delay", NoEqual("Baton waits for no bytes before it chooses a backend")),
    ("tcp-request", Missing(CONDITION)),
    ("tcp-response", Missing("Baton reads no bytes of a backend's answers")),
    ("use-server", Missing("Baton chooses the backend by \"balance\" alone")),
    ("dispatch", Missing("Baton connects to the frontend's backends only")),
    ("stick-table", NoEqual(STICK)),
    ("stick", Missing(STICK)),
    ("hash-type", NoEqual("source_hash is consistent: a lost backend moves only its own clients")),
    (
        "hash-balance-factor",
        NoEqual("source_hash has no limit for a backend's share; max_connections limits a backend"),
    ),
    ("hash-preserve-affinity", NoEqual("source_hash passes over a backend that is full")),
    (
        "rate-limit",
        Missing("accept_rate_per_source limits each client by itself; there is no limit for a whole frontend"),
    ),
    ("backlog", NoEqual("Baton chooses the length of the listening queue")),
    ("email-alert", NoEqual(MAIL)),
    ("description", NoEqual("only a name")),
    ("id", NoEqual("only a number")),
    ("guid", NoEqual("only a name")),
    ("enabled", Kept("so it is")),
    ("persist", NoEqual(HTTP)),
    ("force-persist", NoEqual(HTTP)),
    ("ignore-persist", NoEqual(HTTP)),
    ("load-server-state-from-file", Kept("`baton upgrade` gives the backends' states to the new process")),
    ("server-state-file-name", Kept("`baton upgrade` gives the backends' states to the new process")),
    ("external-check", Missing("Baton runs no program as a probe")),
    ("declare", NoEqual(HTTP)),
    ("bind-process", NoEqual("Baton has one process; process.workers is the number of its threads")),
    ("tcp-check comment", NoEqual("only a comment")),
    ("retry-on", NoEqual(HTTP)),
];

/// Of the section `global`, by the first word.
const GLOBAL: &[(&str, Meaning)] = &[
    ("log", NoEqual(LOGS)),
    ("log-tag", NoEqual(LOGS)),
    ("log-send-hostname", NoEqual(LOGS)),
    ("daemon", NoEqual(PROCESS)),
    ("chroot", NoEqual(PROCESS)),
    ("user", NoEqual(PROCESS)),
    ("group", NoEqual(PROCESS)),
    ("uid", NoEqual(PROCESS)),
    ("gid", NoEqual(PROCESS)),
    ("pidfile", NoEqual(PROCESS)),
    ("master-worker", Kept("`baton upgrade` replaces the process and keeps every flow")),
    ("mworker-max-reloads", NoEqual(PROCESS)),
    ("ulimit-n", Kept("Baton raises the limit of file descriptors by itself")),
    ("fd-hard-limit", NoEqual(PROCESS)),
    ("maxpipes", NoEqual("Baton makes pipes as it needs them")),
    ("maxsock", NoEqual("process.max_connections limits the descriptors, two for each flow")),
    ("maxconnrate", Missing("accept_rate_per_source limits each client by itself; there is no limit for all")),
    ("maxsessrate", Missing("accept_rate_per_source limits each client by itself; there is no limit for all")),
    ("maxsslconn", NoEqual(TLS)),
    ("maxsslrate", NoEqual(TLS)),
    ("maxcomprate", NoEqual(HTTP)),
    ("nbproc", NoEqual("Baton has one process; process.workers is the number of its threads")),
    ("thread-group", NoEqual("Baton has one worker per core")),
    ("thread-groups", NoEqual("Baton has one worker per core")),
    ("cpu-map", NoEqual("Baton has one worker per core that the process may run on: taskset and systemd say which")),
    ("cpu-policy", NoEqual("Baton has one worker per core that the process may run on")),
    ("numa-cpu-mapping", NoEqual("Baton has one worker per core that the process may run on")),
    ("stats", NoEqual(STATS)),
    ("description", NoEqual("only a name")),
    ("node", NoEqual("[instance] name is the name of this instance in a fleet")),
    ("localpeer", NoEqual("[instance] name is the name of this instance in a fleet")),
    ("server-state-base", Kept("`baton upgrade` gives the backends' states to the new process")),
    ("server-state-file", Kept("`baton upgrade` gives the backends' states to the new process")),
    ("crt-base", NoEqual(TLS)),
    ("external-check", NoEqual("Baton runs no program as a probe")),
    ("insecure-fork-wanted", NoEqual("Baton runs no program as a probe")),
    ("insecure-setuid-wanted", NoEqual("Baton runs no program as a probe")),
    ("resetenv", NoEqual("Baton reads no environment")),
    ("setenv", NoEqual("Baton reads no environment: write values in place of variables")),
    ("presetenv", NoEqual("Baton reads no environment: write values in place of variables")),
    ("unsetenv", NoEqual("Baton reads no environment")),
    ("unix-bind", NoEqual("the admin socket has mode 0600")),
    ("harden.reject-privileged-ports.tcp", NoEqual("Baton takes every client's port")),
    ("expose-experimental-directives", NoEqual("it allows other lines")),
    ("expose-deprecated-directives", NoEqual("it allows other lines")),
    ("zero-warning", NoEqual("`baton check` prints the warnings")),
    ("strict-limits", Kept("Baton says so if the limit of file descriptors is too low")),
    ("set-dumpable", NoEqual(PROCESS)),
    ("grace", NoEqual("process.shutdown_delay fails readiness before the listeners close")),
    ("close-spread-time", NoEqual("process.reset_within spreads resets")),
    ("shm-stats-file", NoEqual(STATS)),
    ("busy-polling", NoEqual("Baton waits in epoll")),
    ("max-spread-checks", NoEqual("health.jitter_percent spreads the probes")),
    ("default-path", NoEqual("relative paths in Baton's file begin at its directory")),
];

/// Beginnings of directives of the section `global`.
const GLOBAL_PREFIXES: &[(&str, Meaning)] = &[
    ("tune.", NoEqual("it tunes HAProxy's own buffers and limits")),
    ("ssl-", NoEqual(TLS)),
    ("issuers-", NoEqual(TLS)),
    ("lua-", NoEqual("Baton runs no scripts")),
    ("h1-", NoEqual(HTTP)),
    ("h2-", NoEqual(HTTP)),
    ("http-", NoEqual(HTTP)),
    ("http.", NoEqual(HTTP)),
    ("httpclient.", NoEqual(HTTP)),
    ("51degrees-", NoEqual(HTTP)),
    ("deviceatlas-", NoEqual(HTTP)),
    ("wurfl-", NoEqual(HTTP)),
    ("profiling.", NoEqual(STATS)),
    ("no", NoEqual("it turns off one of HAProxy's own ways to wait and to copy")),
    ("quiet", NoEqual(LOGS)),
    ("debug", NoEqual(LOGS)),
];

/// The meaning of a directive in a section of this kind. `None`: nobody here knows it.
pub(super) fn meaning(directive: &Directive, kind: SectionKind) -> Option<Meaning> {
    let (first, second) = (directive.word(0), directive.word(1));
    let both = format!("{first} {second}");
    if SETTINGS.iter().any(|it| *it == first || *it == both) {
        return Some(Setting);
    }
    let find = |table: &[(&str, Meaning)]| {
        let exact = |word: &str| table.iter().find(|(name, _)| *name == word).map(|(_, meaning)| *meaning);
        let group =
            || table.iter().find(|(name, _)| name.ends_with(' ') && name.trim_end() == first && !second.is_empty());
        exact(&both).or_else(|| exact(first)).or_else(|| group().map(|(_, meaning)| *meaning))
    };
    match kind {
        SectionKind::Global => {
            let prefixed = || GLOBAL_PREFIXES.iter().find(|(prefix, _)| first.starts_with(prefix)).map(|(_, it)| *it);
            find(GLOBAL).or_else(prefixed)
        }
        _ => find(PROXIES),
    }
}

/// The directives of the sections that lead to no server, as configuration.txt of HAProxy 3.2 has them. A section that is not here
/// may have any.
const OTHERS: &[(&str, &[&str])] = &[
    ("resolvers", &["nameserver", "parse-resolv-conf", "hold", "resolve_retries", "timeout", "accepted_payload_size"]),
    (
        "peers",
        &["peer", "server", "bind", "default-bind", "default-server", "table", "shards", "log", "disabled", "enabled"],
    ),
    ("userlist", &["user", "group"]),
    ("mailers", &["mailer", "timeout"]),
    ("cache", &["total-max-size", "max-object-size", "max-age", "process-vary", "max-secondary-entries"]),
];

/// Whether a section with this keyword has such a directive, so far as anyone here knows.
pub(super) fn has_directive(section: &str, directive: &Directive) -> bool {
    let known = OTHERS.iter().find(|(keyword, _)| *keyword == section);
    known.is_none_or(|(_, words)| words.contains(&directive.word(0)))
}

/// The meaning of a line of a section `resolvers`, if no server's name is asked of it.
pub(super) fn of_resolvers(directive: &Directive) -> Meaning {
    match directive.word(0) {
        "nameserver" => Kept("no server that is written has a name that is asked there"),
        "parse-resolv-conf" => Kept("Baton asks the name servers of /etc/resolv.conf"),
        _ => NoEqual(
            "Baton asks again when an answer's time to live is over, for a single backend every resolve_interval, and keeps what it \
             knows if no answer comes",
        ),
    }
}

/// Whether the value of a limit says that there is none.
pub(super) fn is_unlimited(directive: &Directive) -> bool {
    match directive.word(0) {
        "maxconnrate" | "maxsessrate" | "maxsslconn" | "maxsslrate" | "fullconn" | "backlog" => {
            directive.word(1) == "0"
        }
        "rate-limit" => directive.word(2) == "0",
        _ => false,
    }
}

/// Why a section that leads to no server has no equal, and whether connections need it.
pub(super) fn other_section(keyword: &str) -> Meaning {
    match keyword {
        "peers" => {
            NoEqual("the instances of [peers] tell each other of all flows; there are no tables of clients to share")
        }
        "mailers" => NoEqual(MAIL),
        "log-forward" | "ring" => Missing("Baton forwards no logs"),
        "log-profile" => NoEqual(LOGS),
        "program" => Missing("Baton starts no other programs: the service manager does"),
        "traces" => NoEqual(STATS),
        "crt-store" | "crt-list" | "acme" => NoEqual(TLS),
        "healthcheck" => Missing("Baton probes by tcp, tls, http or https"),
        _ => NoEqual(HTTP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, kind: SectionKind) -> Option<Meaning> {
        let words = text.split(' ').map(str::to_owned).collect();
        meaning(&Directive { line: 0, words, is_off: false }, kind)
    }

    #[test]
    fn a_directive_is_known_by_its_first_words_and_an_unknown_one_is_not() {
        use SectionKind::{Backend, Global};
        assert_eq!(of("timeout connect 5s", Backend), Some(Setting));
        assert_eq!(of("timeout queue 5s", Backend), Some(NoEqual(QUEUE)));
        assert_eq!(of("option http-server-close", Backend), Some(NoEqual(HTTP)));
        assert_eq!(of("option redispatch", Backend), Some(PROXIES[0].1));
        assert_eq!(
            of("tcp-request inspect-delay 5s", Backend),
            Some(NoEqual("Baton waits for no bytes before it chooses a backend"))
        );
        assert_eq!(of("tcp-request connection reject", Backend), Some(Setting));
        assert_eq!(of("tcp-request content reject", Backend), Some(Setting));
        assert_eq!(of("tcp-request other", Backend), Some(Missing(CONDITION)));
        assert_eq!(of("tune.ssl.default-dh-param 2048", Global), Some(GLOBAL_PREFIXES[0].1));
        assert_eq!([of("frobnicate 1", Backend), of("frobnicate 1", Global), of("daemon", Backend)], [None; 3]);
    }
}
