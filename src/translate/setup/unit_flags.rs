//! The flags of k3s and RKE2 in their units: k3s' installer writes there what it was given by INSTALL_K3S_EXEC.

use std::collections::BTreeMap;

use super::sources::{K3S_CONFIG, RKE2_CONFIG};
use crate::translate::ForeignFile;
use crate::translate::haproxy::words;

/// The units that may have flags for the file of each distribution.
const UNITS: [(&str, &str); 4] = [
    (K3S_CONFIG, "/etc/systemd/system/k3s.service"),
    (K3S_CONFIG, "/etc/systemd/system/k3s-agent.service"),
    (RKE2_CONFIG, "/usr/local/lib/systemd/system/rke2-server.service"),
    (RKE2_CONFIG, "/etc/systemd/system/rke2-server.service"),
];

/// Added to the path of the file of k3s or RKE2: a directory with more of it.
const DROP_INS: &str = ".d";

/// Whether the file at `path` counts beside the one at `config`.
pub(super) fn counts_beside(config: &str, path: &str) -> bool {
    path.starts_with(&format!("{config}{DROP_INS}/")) || UNITS.contains(&(config, path))
}

/// The paths of all units that may have flags.
pub(crate) fn units() -> impl Iterator<Item = &'static str> {
    UNITS.into_iter().map(|(_, path)| path)
}

/// The flags of a unit as a file of its program would have them: they count more than any file (docs.k3s.io/installation/configuration).
/// `None`: it has none.
pub(crate) fn as_config(unit: &ForeignFile) -> Option<ForeignFile> {
    let text = unit.text.replace("\\\n", " ");
    let command = text.lines().rev().find_map(|line| line.trim().strip_prefix("ExecStart="))?;
    // Quoted as in haproxy.cfg (systemd.service(5), "Command lines").
    let words = words(command).ok()?;
    let mut flags = BTreeMap::<&str, Vec<&str>>::new();
    let mut all = words.iter().map(String::as_str).peekable();
    while let Some(word) = all.next() {
        let Some(flag) = word.strip_prefix("--") else { continue };
        let (key, value) = match flag.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (flag, all.next_if(|next| !next.starts_with('-'))),
        };
        flags.entry(key).or_default().push(value.unwrap_or("true"));
    }
    // JSON is YAML.
    let text = serde_json::to_string(&flags).expect("text");
    (!flags.is_empty()).then(|| ForeignFile { name: unit.name.clone(), text })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(unit: &str) -> Option<String> {
        as_config(&ForeignFile { name: "k3s.service".to_owned(), text: unit.to_owned() }).map(|file| file.text)
    }

    #[test]
    fn flags_are_read_as_the_installer_of_k3s_writes_them() {
        let unit = "[Service]\nExecStartPre=-/sbin/modprobe overlay\nExecStart=/usr/local/bin/k3s \\\n    server \\\n\t'--tls-san' \\\n\
                    \t'10.0.0.100' \\\n\t'--tls-san=k8s.example' \\\n\t'--cluster-init' \\\n\t\"--https-listen-port=6444\" \\\n\n";
        let read = r#"{"cluster-init":["true"],"https-listen-port":["6444"],"tls-san":["10.0.0.100","k8s.example"]}"#;
        assert_eq!(flags(unit).as_deref(), Some(read));
        assert_eq!(flags("[Service]\nExecStart=/usr/local/bin/k3s server\n"), None);
        assert_eq!(flags("[Unit]\n"), None);
    }
}
