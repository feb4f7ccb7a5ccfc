//! How Baton probes the apiservers.

use super::{Distribution, Facts, K3S_AGENT_CA, K3S_CA, KUBEADM_CA, RKE2_AGENT_CA, RKE2_CA, SetupHost, SetupRequest};
use crate::translate::toml::{Toml, quoted};

/// The kind of probe, and the reason.
pub(super) struct HealthSource {
    kind: &'static str,
    path: Option<&'static str>,
    pub(super) ca_file: Option<String>,
    place: String,
}

impl HealthSource {
    pub(super) fn choose(request: &SetupRequest, host: &SetupHost, of_cluster: Option<Distribution>) -> Self {
        let (kind, path, usual) = match of_cluster {
            Some(Distribution::K3s) => ("https", Some("/ping"), &[K3S_CA, K3S_AGENT_CA][..]),
            // It answers 401 to requests without credentials.
            Some(Distribution::Rke2) => ("tls", None, &[RKE2_CA, RKE2_AGENT_CA][..]),
            Some(Distribution::Kubeadm) | None => ("https", Some("/readyz"), &[KUBEADM_CA][..]),
        };
        if let Some(ca) = &request.ca_file {
            return Self { kind, path, ca_file: Some(ca.clone()), place: "--ca-file".to_owned() };
        }
        if let Some(ca) = usual.iter().find(|ca| host.has_authority(ca)) {
            return Self { kind, path, ca_file: Some((*ca).to_owned()), place: format!("{ca} is there") };
        }
        let place = "no CA is here yet, so a probe asks the kernel only and misses a hung apiserver; once it is here, run this \
                     again with --force, or name it with --ca-file";
        Self { kind: "tcp", path: None, ca_file: None, place: place.to_owned() }
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
