//! The meaning of a probe's error for its backend.

use std::error::Error as _;
use std::io::{self, ErrorKind};

use rustix::io::Errno;
use rustls::{AlertDescription, CertificateError, Error as TlsError};
use rustls_pki_types::UnixTime;

use crate::model::health::Cause;
use crate::model::health::machine::ProbeOutcome;

/// The backend chooses how many names its certificate has; the length of a log line must not depend on that.
const NAMES_SHOWN: usize = 8;
const TEXT_CHARS: usize = 400;
const HOUR_S: u64 = 3600;
const DAY_S: u64 = 24 * HOUR_S;

/// An error of socket(2) or connect(2).
pub(super) fn of_connect(error: &io::Error) -> ProbeOutcome {
    match Errno::from_io_error(error) {
        Some(
            Errno::MFILE
            | Errno::NFILE
            | Errno::NOMEM
            | Errno::NOBUFS
            | Errno::ADDRNOTAVAIL
            | Errno::ADDRINUSE
            | Errno::AGAIN,
        ) => ProbeOutcome::Inconclusive { error: error.to_string() },
        _ => of_io(error),
    }
}

/// An error of an established connection.
pub(super) fn of_io(error: &io::Error) -> ProbeOutcome {
    if let Some(error) = tls_error(error) {
        return of_tls(error);
    }
    ProbeOutcome::Failed(match error.kind() {
        ErrorKind::ConnectionRefused => Cause::Refused,
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => Cause::Reset,
        ErrorKind::UnexpectedEof => Cause::Protocol { error: "it closed the connection before it answered".into() },
        _ => Cause::Unreachable { error: error.to_string() },
    })
}

pub(super) fn of_hyper(error: &hyper::Error) -> ProbeOutcome {
    if let Some(error) = error.source().and_then(|source| source.downcast_ref::<io::Error>()) {
        return of_io(error);
    }
    let text = match error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        true => "it closed the connection before it answered".into(),
        false => short(error.to_string()),
    };
    ProbeOutcome::Failed(Cause::Protocol { error: text })
}

/// The TLS error inside, if there is one.
pub(super) fn tls_error(error: &io::Error) -> Option<&TlsError> {
    error.get_ref()?.downcast_ref()
}

fn of_tls(error: &TlsError) -> ProbeOutcome {
    let text = match error {
        TlsError::InvalidMessage(_) => {
            return ProbeOutcome::Failed(Cause::Protocol { error: "it does not speak TLS".into() });
        }
        TlsError::InvalidCertificate(fault) => of_certificate(fault),
        TlsError::AlertReceived(AlertDescription::CertificateRequired) => "it wants a client certificate".into(),
        TlsError::AlertReceived(alert) => format!("it sent the alert {alert:?}"),
        other => other.to_string(),
    };
    ProbeOutcome::Failed(Cause::Tls { error: short(text) })
}

fn of_certificate(fault: &CertificateError) -> String {
    match fault {
        CertificateError::ExpiredContext { time, not_after } => {
            format!("certificate expired {} ago (notAfter {})", span(*not_after, *time), utc(*not_after))
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            format!(
                "certificate is not valid for another {} (notBefore {})",
                span(*time, *not_before),
                utc(*not_before)
            )
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<_> = presented.iter().take(NAMES_SHOWN).map(|name| bare_name(name)).collect();
            let more = if presented.len() > NAMES_SHOWN { ", ..." } else { "" };
            match names.is_empty() {
                true => format!("certificate has no name, so not {} either", expected.to_str()),
                false => format!("certificate is for {}{more}, not {}", names.join(", "), expected.to_str()),
            }
        }
        CertificateError::Expired => "certificate expired".into(),
        CertificateError::NotValidYet => "certificate is not valid yet".into(),
        CertificateError::NotValidForName => "certificate is for another name".into(),
        CertificateError::UnknownIssuer => "certificate is signed by an unknown authority".into(),
        // Every kubeadm cluster calls its authority "kubernetes", so a certificate of another cluster fails in this
        // way.
        CertificateError::BadSignature => {
            "certificate is signed by an unknown authority that has a known one's name".into()
        }
        CertificateError::Revoked => "certificate was revoked".into(),
        // The library's own name for what it found; this one is met where somebody names an apiserver's certificate as ca_file.
        CertificateError::Other(fault) => match fault.0.to_string() {
            name if name == "CaUsedAsEndEntity" => {
                "certificate is an authority's own: ca_file must be that of the authority which has signed the server's"
                    .into()
            }
            name => format!("certificate is not valid: {name}"),
        },
        other => other.to_string(),
    }
}

/// rustls shows names as `DnsName("cp1")` and `IpAddress(10.0.0.1)`.
fn bare_name(shown: &str) -> &str {
    let inner = shown.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(shown).trim_matches('"')
}

/// The time from one moment to a later one, in the largest whole unit.
fn span(from: UnixTime, to: UnixTime) -> String {
    let seconds = to.as_secs().saturating_sub(from.as_secs());
    let (count, unit) = match seconds {
        DAY_S.. => (seconds / DAY_S, "day"),
        HOUR_S.. => (seconds / HOUR_S, "hour"),
        _ => (seconds / 60, "minute"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

/// As RFC 3339, in UTC. Days to civil date after Hinnant, "chrono-Compatible Low-Level Date Algorithms".
fn utc(time: UnixTime) -> String {
    let (days, second) = (time.as_secs() / DAY_S + 719_468, time.as_secs() % DAY_S);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

fn short(text: String) -> String {
    match text.char_indices().nth(TEXT_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use rustls::OtherError;

    use super::*;

    fn at(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds))
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(at(0)), "1970-01-01T00:00:00Z");
        assert_eq!(utc(at(951_782_400)), "2000-02-29T00:00:00Z");
        assert_eq!(utc(at(1_709_251_199)), "2024-02-29T23:59:59Z");
        assert_eq!(utc(at(4_102_444_800)), "2100-01-01T00:00:00Z");
    }

    #[test]
    fn an_expired_certificate_says_since_when() {
        let fault = CertificateError::ExpiredContext { time: at(10 * DAY_S + 5), not_after: at(7 * DAY_S) };
        assert_eq!(of_certificate(&fault), "certificate expired 3 days ago (notAfter 1970-01-08T00:00:00Z)");
        let fault = CertificateError::NotValidYetContext { time: at(0), not_before: at(HOUR_S) };
        let text = of_certificate(&fault);
        assert_eq!(text, "certificate is not valid for another 1 hour (notBefore 1970-01-01T01:00:00Z)");
    }

    #[test]
    fn want_of_descriptors_or_ports_is_no_fault_of_the_backend() {
        for errno in [libc::EMFILE, libc::ENFILE, libc::EADDRNOTAVAIL, libc::ENOBUFS] {
            let outcome = of_connect(&io::Error::from_raw_os_error(errno));
            assert!(matches!(outcome, ProbeOutcome::Inconclusive { .. }), "{outcome:?}");
        }
        for errno in [libc::EHOSTUNREACH, libc::ENETUNREACH, libc::EPERM] {
            let outcome = of_connect(&io::Error::from_raw_os_error(errno));
            assert!(matches!(outcome, ProbeOutcome::Failed(Cause::Unreachable { .. })), "{outcome:?}");
        }
    }

    /// It was printed as the library's structures.
    #[test]
    fn an_authority_s_certificate_at_a_server_says_which_one_is_wanted() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Found(&'static str);
        let told = |name| {
            let fault = CertificateError::Other(OtherError(std::sync::Arc::new(Found(name))));
            let ProbeOutcome::Failed(Cause::Tls { error }) = of_tls(&TlsError::InvalidCertificate(fault)) else {
                panic!()
            };
            error
        };
        let said =
            "certificate is an authority's own: ca_file must be that of the authority which has signed the server's";
        assert_eq!(told("CaUsedAsEndEntity"), said);
        assert_eq!(
            told("MaximumNameConstraintComparisonsExceeded"),
            "certificate is not valid: MaximumNameConstraintComparisonsExceeded"
        );
    }

    #[test]
    fn a_certificate_cannot_flood_the_log() {
        let presented = (0..100_000).map(|index| format!("DnsName(\"{index}.example\")")).collect();
        let expected = "cp1".try_into().unwrap();
        let fault = CertificateError::NotValidForNameContext { expected, presented };
        let ProbeOutcome::Failed(Cause::Tls { error }) = of_tls(&TlsError::InvalidCertificate(fault)) else { panic!() };
        assert!(error.starts_with("certificate is for 0.example, 1.example,") && error.ends_with("..., not cp1"));
        assert!(error.len() < 500);
    }
}
