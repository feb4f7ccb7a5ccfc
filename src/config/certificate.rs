//! Certificates and keys out of PEM files (RFC 7468).

use std::time::{SystemTime, UNIX_EPOCH};

use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::file::FileFault;

/// Why a PEM file is unusable. Never quotes the file's content, which may be a key.
#[derive(Debug, thiserror::Error)]
pub(super) enum PemFault {
    #[error(transparent)]
    File(#[from] FileFault),
    #[error("an empty file")]
    Empty,
    #[error("no \"-----BEGIN {0}-----\" in it")]
    NoSection(&'static str),
    #[error("\"-----BEGIN {0}-----\" without its end")]
    NoEnd(String),
    #[error("a malformed \"-----BEGIN\" line")]
    BadStart,
    #[error("a section that is not base64")]
    BadBase64,
    #[error("certificate {number} in it is not an X.509 certificate that can be used: {}", reason(.source))]
    BadCertificate { number: usize, source: rustls::Error },
    #[error("its key is not RSA, ECDSA or Ed25519")]
    BadKey { source: rustls::Error },
}

/// All certificates of a file, at least one.
pub(super) fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemFault> {
    let all = CertificateDer::pem_slice_iter(bytes).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(|error| fault(error, bytes, "CERTIFICATE"))?;
    if all.is_empty() { Err(fault(pem::Error::NoItemsFound, bytes, "CERTIFICATE")) } else { Ok(all) }
}

/// The first private key of a file: PKCS#8, PKCS#1 or SEC1.
pub(super) fn private_key(bytes: &[u8]) -> Result<PrivateKeyDer<'static>, PemFault> {
    PrivateKeyDer::from_pem_slice(bytes).map_err(|error| fault(error, bytes, "PRIVATE KEY"))
}

/// The day, as `2031-12-24`, on which a certificate ended before `now`. `None`: it is still good, or cannot be read.
pub(super) fn expired_on(certificate: &CertificateDer, now: SystemTime) -> Option<String> {
    let end = not_after(certificate.as_ref())?;
    let now_s = now.duration_since(UNIX_EPOCH).ok()?.as_secs() as i64;
    let [year, month, day, hour, minute, second] = end;
    let end_s = days_since_epoch(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    (end_s < now_s).then(|| format!("{year:04}-{month:02}-{day:02}"))
}

/// Without rustls' "invalid peer certificate": no peer is involved yet.
fn reason(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(reason) => reason.to_string(),
        other => other.to_string(),
    }
}

fn fault(error: pem::Error, bytes: &[u8], label: &'static str) -> PemFault {
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            PemFault::NoEnd(String::from_utf8_lossy(&end_marker).trim_end().to_owned())
        }
        pem::Error::IllegalSectionStart { .. } => PemFault::BadStart,
        pem::Error::Base64Decode(_) => PemFault::BadBase64,
        _ if bytes.iter().all(u8::is_ascii_whitespace) => PemFault::Empty,
        _ => PemFault::NoSection(label),
    }
}

/// Year, month, day, hour, minute, second of `validity.notAfter` (RFC 5280 section 4.1), read out of DER (X.690).
fn not_after(certificate: &[u8]) -> Option<[i64; 6]> {
    let (_, certificate, _) = element(certificate)?;
    let (_, mut fields, _) = element(certificate)?;
    // The version is optional; then serial number, signature algorithm, issuer, validity.
    if fields.first() == Some(&TAG_VERSION) {
        fields = element(fields)?.2;
    }
    for _ in 0..3 {
        fields = element(fields)?.2;
    }
    let (_, validity, _) = element(fields)?;
    let (_, _, after) = element(validity)?;
    let (tag, text, _) = element(after)?;
    let numbers: Vec<i64> = match tag {
        TAG_UTC_TIME => pairs(text)?,
        TAG_GENERALIZED_TIME => {
            let numbers = pairs(text)?;
            let (century, rest) = numbers.split_first()?;
            let (year, rest) = rest.split_first()?;
            std::iter::once(century * 100 + year).chain(rest.iter().copied()).collect()
        }
        _ => return None,
    };
    let mut time: [i64; 6] = numbers.try_into().ok()?;
    if tag == TAG_UTC_TIME {
        // RFC 5280 section 4.1.2.5.1.
        time[0] += if time[0] < 50 { 2000 } else { 1900 };
    }
    ((1..=12).contains(&time[1])).then_some(time)
}

/// Tag and content of the first DER element, and the rest.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        if length.len() > 4 {
            return None;
        }
        (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// `311224Z` as 31, 12, 24.
fn pairs(text: &[u8]) -> Option<Vec<i64>> {
    let digits = text.strip_suffix(b"Z")?;
    let number = |pair: &[u8]| std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?.parse::<u8>().ok();
    digits.chunks(2).map(|pair| number(pair).map(i64::from)).collect()
}

/// Days from 1970-01-01 in the Gregorian calendar: years begin in March, so that the leap day is the last.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

const TAG_VERSION: u8 = 0xa0;
const TAG_UTC_TIME: u8 = 0x17;
const TAG_GENERALIZED_TIME: u8 = 0x18;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn self_signed(year: i32) -> CertificateDer<'static> {
        let mut params = rcgen::CertificateParams::new(vec!["ca.test".into()]).unwrap();
        params.not_before = rcgen::date_time_ymd(1980, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 2, 28);
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn days_are_counted_as_calendars_do() {
        assert_eq!(days_since_epoch(1970, 1, 1), 0);
        assert_eq!(days_since_epoch(2000, 3, 1), 11_017);
        assert_eq!(days_since_epoch(2024, 2, 29), 19_782);
        assert_eq!(days_since_epoch(2100, 12, 31), 47_846);
    }

    #[test]
    fn a_certificate_ends_on_its_day_and_not_before() {
        for year in [1999, 2024, 2049, 2050, 2120] {
            let end = UNIX_EPOCH + Duration::from_secs(days_since_epoch(year.into(), 2, 28) as u64 * 86_400);
            let certificate = self_signed(year);
            assert_eq!(expired_on(&certificate, end), None);
            assert_eq!(expired_on(&certificate, end + Duration::from_secs(1)), Some(format!("{year}-02-28")));
        }
    }

    #[test]
    fn a_pem_file_says_what_is_wrong_with_it() {
        let said = |text: &str| certificates(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(said(" \n"), "an empty file");
        assert_eq!(said("hello"), "no \"-----BEGIN CERTIFICATE-----\" in it");
        assert_eq!(said("-----BEGIN CERTIFICATE-----\nAAAA\n"), "\"-----BEGIN CERTIFICATE-----\" without its end");
        assert_eq!(
            said("-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n"),
            "a section that is not base64"
        );
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        assert_eq!(said(&key), "no \"-----BEGIN CERTIFICATE-----\" in it");
        assert!(private_key(key.as_bytes()).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn broken_der_never_panics(cut in 0usize..600, at in 0usize..600, byte: u8) {
            let mut der = self_signed_once().to_vec();
            let length = der.len();
            der[at % length] = byte;
            der.truncate(cut);
            let _ = not_after(&der);
        }
    }

    fn self_signed_once() -> &'static [u8] {
        static DER: std::sync::OnceLock<CertificateDer<'static>> = std::sync::OnceLock::new();
        DER.get_or_init(|| self_signed(2040))
    }
}
