//! Names that people type, turned into the entries they mean.

use std::sync::Arc;

use crate::admin::protocol::{BackendName, Refusal};
use crate::table::backend::{BackendEntry, FrontendEntry, Registry};

/// The one backend that `name` means. A backend's own name may hold a slash, so both readings are tried.
pub fn backend(registry: &Registry, name: &BackendName) -> Result<Arc<BackendEntry>, Refusal> {
    let all = registry.backends();
    let full = |entry: &BackendEntry| format!("{}/{}", entry.frontend.name, entry.name);
    let mut matches: Vec<_> = all.iter().filter(|entry| *entry.name == *name.0 || full(entry) == name.0).collect();
    match matches.len() {
        1 => Ok(matches.remove(0).clone()),
        0 => {
            let known = all.iter().map(|entry| full(entry)).collect();
            Err(Refusal::UnknownBackend { asked: name.0.clone(), known })
        }
        _ => {
            let matches = matches.into_iter().map(|entry| full(entry)).collect();
            Err(Refusal::AmbiguousBackend { asked: name.0.clone(), matches })
        }
    }
}

pub fn frontend(registry: &Registry, name: &str) -> Result<Arc<FrontendEntry>, Refusal> {
    let all = registry.frontends();
    all.iter().find(|entry| *entry.name == *name).cloned().ok_or_else(|| Refusal::UnknownFrontend {
        asked: name.to_owned(),
        known: all.iter().map(|entry| entry.name.to_string()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_one_backend_or_says_which_there_are() {
        let registry = Registry::new(1);
        for (frontend, name) in [("a", "cp1"), ("a", "cp2"), ("b", "cp1")] {
            registry.backend(&registry.frontend(&frontend.into()), &name.into());
        }
        let find = |name: &str| backend(&registry, &BackendName(name.to_owned()));
        assert_eq!(&*find("cp2").unwrap().name, "cp2");
        assert_eq!(&*find("b/cp1").unwrap().frontend.name, "b");
        let both = vec!["a/cp1".to_owned(), "b/cp1".to_owned()];
        assert_eq!(find("cp1").unwrap_err(), Refusal::AmbiguousBackend { asked: "cp1".to_owned(), matches: both });
        assert!(matches!(find("cp9"), Err(Refusal::UnknownBackend { known, .. }) if known.len() == 3));
        assert!(matches!(frontend(&registry, "c"), Err(Refusal::UnknownFrontend { .. })));
    }
}
