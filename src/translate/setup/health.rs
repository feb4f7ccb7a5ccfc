//! How Baton probes the apiservers.

use super::{Apiserver, Distribution, Facts, K3S_CA, KUBEADM_CA, RKE2_CA, SetupHost, SetupRequest};
use crate::translate::toml::{Toml, quoted};

/// The kind of probe, and the reason.
pub(super) struct HealthSource {
    kind: &'static str,
    path: Option<&'static str>,
    pub(super) ca_file: Option<String>,
    place: String,
}

impl HealthSource {
    pub(super) fn choose(request: &SetupRequest, host: &SetupHost, local: Option<&Apiserver>) -> Self {
        let there = |path: &str| host.authorities.iter().any(|it| it == path);
        let by =
            |kind, path, ca: &str| Self { kind, path, ca_file: Some(ca.to_owned()), place: format!("{ca} is there") };
        if let Some(ca) = &request.ca_file {
            let (kind, path) = match local.map(|it| it.kind) {
                Some(Distribution::K3s) => ("https", Some("/ping")),
                Some(Distribution::Rke2) => ("tls", None),
                Some(Distribution::Kubeadm) | None => ("https", Some("/readyz")),
            };
            return Self { place: "--ca-file".to_owned(), ..by(kind, path, ca) };
        }
        match local.map(|it| it.kind) {
            Some(Distribution::K3s) if there(K3S_CA) => by("https", Some("/ping"), K3S_CA),
            // It answers 401 to requests without credentials.
            Some(Distribution::Rke2) if there(RKE2_CA) => by("tls", None, RKE2_CA),
            Some(Distribution::Kubeadm) | None if there(KUBEADM_CA) => by("https", Some("/readyz"), KUBEADM_CA),
            _ => Self {
                kind: "tcp",
                path: None,
                ca_file: None,
                place: "no CA is here yet, so a probe asks the kernel only and misses a hung apiserver; once it is here, run this \
                        again with --force, or name it with --ca-file"
                    .to_owned(),
            },
        }
    }

    pub(super) fn write(&self, toml: &mut Toml, facts: &mut Facts) {
        let value = [Some(self.kind), self.path].into_iter().flatten().collect::<Vec<_>>().join(" ");
        facts.add("health", value, self.place.clone());
        self.write_again(toml);
    }

    pub(super) fn write_again(&self, toml: &mut Toml) {
        toml.table("[frontend.health]");
        toml.key("kind", &quoted(self.kind), &self.place);
        if let Some(path) = self.path {
            toml.bare_key("path", &quoted(path));
        }
        if let Some(ca) = &self.ca_file {
            toml.bare_key("ca_file", &quoted(ca));
            toml.key("server_name", "\"kubernetes\"", "every apiserver's certificate has it");
        }
    }
}
