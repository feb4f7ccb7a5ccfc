//! How Baton probes the apiservers.

use super::{
    Distribution, Facts, HAPROXY_CONFIG, K3S_AGENT_CA, K3S_CA, KUBEADM_CA, RKE2_AGENT_CA, RKE2_CA, SetupHost,
    SetupRequest,
};
use crate::translate::toml::{Toml, quoted};

/// The probe, and the reason.
pub(super) struct HealthSource {
    /// The keys of `[frontend.health]`.
    keys: Vec<(String, toml::Value)>,
    pub(super) ca_file: Option<String>,
    place: String,
}

impl HealthSource {
    /// `of_cluster`: whose the cluster is, and where its files are, if a file says so. `of_haproxy`: what its check asks for.
    pub(super) fn choose(
        request: &SetupRequest,
        host: &SetupHost,
        (of_cluster, data_dir): (Option<Distribution>, Option<&str>),
        of_haproxy: Option<toml::Table>,
    ) -> Self {
        let (kind, path, usual) = match of_cluster {
            Some(Distribution::K3s) => ("https", Some("/ping"), &[K3S_CA, K3S_AGENT_CA][..]),
            // It answers 401 to requests without credentials.
            Some(Distribution::Rke2) => ("tls", None, &[RKE2_CA, RKE2_AGENT_CA][..]),
            Some(Distribution::Kubeadm) | None => ("https", Some("/readyz"), &[KUBEADM_CA][..]),
        };
        let given = request.ca_file.as_ref().map(|ca| (ca.clone(), "--ca-file".to_owned()));
        let usual = || usual.iter().find(|ca| host.has_authority(ca));
        let found = given.or_else(|| usual().map(|ca| ((*ca).to_owned(), format!("{ca} is there"))));
        let text = |key: &str, value: &str| (key.to_owned(), toml::Value::from(value));
        match (found, of_haproxy) {
            (Some((ca, place)), _) => {
                let path = path.map(|path| text("path", path));
                let verified = [text("ca_file", &ca), text("server_name", "kubernetes")];
                let keys = [text("kind", kind)].into_iter().chain(path).chain(verified).collect();
                Self { keys, ca_file: Some(ca), place }
            }
            (None, Some(table)) => {
                let ca_file = table.get("ca_file").and_then(toml::Value::as_str).map(str::to_owned);
                let mut place = format!("{HAPROXY_CONFIG}: its check");
                if ca_file.is_none() && table.contains_key("insecure_skip_verify") {
                    place += ", which takes any certificate; once the cluster's CA is here, name it with --ca-file and --force";
                }
                let mut keys: Vec<_> = table.into_iter().collect();
                keys.sort_by_key(|(key, _)| ORDER.iter().position(|it| it == key).unwrap_or(ORDER.len()));
                Self { keys, ca_file, place }
            }
            (None, None) => {
                let place = match data_dir {
                    Some(directory) => format!(
                        "a probe asks the kernel only and misses a hung apiserver: name the CA, which is below data-dir = {directory}, by \
                         --ca-file {directory}/server/tls/server-ca.crt"
                    ),
                    None => "no CA is here yet, so a probe asks the kernel only and misses a hung apiserver; once it is here, run this \
                             again with --force, or name it with --ca-file"
                        .to_owned(),
                };
                Self { keys: vec![text("kind", "tcp")], ca_file: None, place }
            }
        }
    }

    pub(super) fn write(&self, toml: &mut Toml, facts: &mut Facts) {
        let values =
            |wanted: &str| self.keys.iter().find(|(key, _)| key == wanted).and_then(|(_, value)| value.as_str());
        let value = ORDER[..2].iter().filter_map(|key| values(key)).collect::<Vec<_>>().join(" ");
        facts.add("health", value, self.place.clone());
        self.write_again(toml);
    }

    pub(super) fn write_again(&self, toml: &mut Toml) {
        toml.table("[frontend.health]");
        for (key, value) in &self.keys {
            let value = value.as_str().map_or_else(|| value.to_string(), quoted);
            match &**key {
                "kind" => toml.key(key, &value, &self.place),
                "server_name" if value == "\"kubernetes\"" => {
                    toml.key(key, &value, "every apiserver's certificate has it");
                }
                _ => toml.bare_key(key, &value),
            }
        }
    }
}

/// The first keys of the table.
const ORDER: [&str; 5] = ["kind", "path", "ca_file", "server_name", "insecure_skip_verify"];
