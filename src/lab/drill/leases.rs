//! The leases that a drill writes.

/// `NAMESPACE/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseName {
    pub namespace: String,
    pub prefix: String,
}

const PREFIX_DEFAULT: &str = "baton-drill";

/// Leaves room for a dash and a number in the 253 characters of a name.
const PREFIX_LENGTH_MAX: usize = 240;
/// A DNS label (RFC 1123).
const NAMESPACE_LENGTH_MAX: usize = 63;

/// Names as Kubernetes allows them.
pub(super) fn parse(text: &str) -> Result<LeaseName, String> {
    let (namespace, prefix) = text.split_once('/').unwrap_or((text, PREFIX_DEFAULT));
    for (what, name, most) in [("namespace", namespace, NAMESPACE_LENGTH_MAX), ("prefix", prefix, PREFIX_LENGTH_MAX)] {
        let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        let inner = name.bytes().all(|byte| edge(Some(byte)) || byte == b'-');
        if !inner || !edge(name.bytes().next()) || !edge(name.bytes().next_back()) || name.len() > most {
            return Err(format!("the {what} must be 1 to {most} small letters, digits and inner dashes"));
        }
    }
    Ok(LeaseName { namespace: namespace.to_owned(), prefix: prefix.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_may_have_a_prefix_behind_it_and_nothing_that_would_leave_it() {
        let read = |text| parse(text).map(|lease| (lease.namespace, lease.prefix));
        assert_eq!(read("trial"), Ok(("trial".into(), "baton-drill".into())));
        assert_eq!(read("trial/lb-a"), Ok(("trial".into(), "lb-a".into())));
        for bad in ["", "/x", "a/", "a/b/c", "a/../b", "A", "a?b", "-a", "a b", &"a".repeat(64)] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
