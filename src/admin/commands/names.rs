//! Finds the entries for names that an operator types.

use std::sync::Arc;

use crate::admin::protocol::{BackendName, Refusal};
use crate::table::backend::{BackendEntry, FrontendEntry, Registry};

/// The one backend called `name`. A backend's own name may contain a slash, so both readings are tried.
pub(super) fn backend(registry: &Registry, name: &BackendName) -> Result<Arc<BackendEntry>, Refusal> {
    let all: Vec<_> = registry.backends().into_iter().filter(|it| !it.is_former()).collect();
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

/// The entries whose flows `name` selects: all of the backend's, or the one with that label.
pub(super) fn addresses(registry: &Registry, name: &BackendName) -> Result<Vec<Arc<BackendEntry>>, Refusal> {
    let full = |entry: &BackendEntry| format!("{}/{}", entry.frontend.name, entry.label());
    let shown = |it: &Arc<BackendEntry>| it.is_former() && (it.label() == name.0 || full(it) == name.0);
    let mut shown: Vec<_> = registry.backends().into_iter().filter(shown).collect();
    if shown.len() == 1 {
        return Ok(shown);
    }
    let current = backend(registry, name)?;
    shown = registry.formers_of(&current);
    shown.insert(0, current);
    Ok(shown)
}

pub(super) fn frontend(registry: &Registry, name: &str) -> Result<Arc<FrontendEntry>, Refusal> {
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
    fn a_name_means_its_flows_wherever_it_was_and_what_is_shown_means_that_alone() {
        let registry = Registry::new(1);
        let (frontend, name) = (registry.frontend(&"a".into()), "cp1".into());
        let at =
            |text: &str| registry.backend_at(&frontend, &name, crate::addr::BackendAddr::new(text.parse().unwrap()));
        let (old, new) = (at("10.0.0.11:6443"), at("10.0.0.12:6443"));
        registry.lead(&new);
        let find = |name: &str| {
            let found = addresses(&registry, &BackendName(name.to_owned())).unwrap();
            found.iter().map(|it| it.id).collect::<Vec<_>>()
        };
        assert_eq!(find("cp1"), [new.id, old.id]);
        assert_eq!(find("cp1 (10.0.0.11:6443)"), [old.id]);
        assert_eq!(find("a/cp1 (10.0.0.11:6443)"), [old.id]);
        assert_eq!(backend(&registry, &BackendName("cp1".to_owned())).unwrap().id, new.id);
    }

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
