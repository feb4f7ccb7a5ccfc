//! What starts Baton on a host: a unit of systemd, or a static pod of the kubelet.

use std::path::Path;

use serde_json::json;

const SHIPPED: &str = include_str!("../../../deploy/baton.service");

/// deploy/baton.service for this binary and this file.
pub(super) fn unit(binary: &Path, config: &Path) -> String {
    let (binary, config) = (binary.display().to_string(), config.display().to_string());
    SHIPPED.replace("/usr/bin/baton", &binary).replace("/etc/baton/baton.toml", &config)
}

/// A pod that the kubelet starts without an apiserver. JSON is YAML, too; so the strings are quoted by a library.
pub(super) fn static_pod(image: &str, config: &Path, ca_file: Option<&str>) -> String {
    let directory = config.parent().unwrap_or(Path::new("/")).display().to_string();
    let config = config.display().to_string();
    let mut volumes = vec![
        ("config", directory, "Directory", true),
        ("bpf", "/sys/fs/bpf".to_owned(), "Directory", false),
        ("run", "/run/baton".to_owned(), "DirectoryOrCreate", false),
        // The flight recorder and the last discovered backends.
        ("state", "/var/lib/baton".to_owned(), "DirectoryOrCreate", false),
    ];
    // Only the certificate: the private keys are beside it.
    volumes.extend(ca_file.map(|path| ("ca", path.to_owned(), "File", true)));
    let mounts: Vec<_> = volumes
        .iter()
        .map(|(name, path, _, read_only)| json!({ "name": name, "mountPath": path, "readOnly": read_only }))
        .collect();
    let volumes: Vec<_> = volumes
        .iter()
        .map(|(name, path, kind, _)| json!({ "name": name, "hostPath": { "path": path, "type": kind } }))
        .collect();
    let probe = json!({ "host": "127.0.0.1", "port": 9470, "path": "/livez" });
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "baton", "namespace": "kube-system", "labels": { "app.kubernetes.io/name": "baton" } },
        "spec": {
            "hostNetwork": true,
            "priorityClassName": "system-node-critical",
            "terminationGracePeriodSeconds": 60,
            "containers": [{
                "name": "baton",
                "image": image,
                "command": ["baton", "run", "-c", config],
                "securityContext": {
                    "runAsUser": 0,
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": { "drop": ["ALL"], "add": CAPABILITIES },
                },
                "livenessProbe": { "httpGet": probe, "initialDelaySeconds": 10, "periodSeconds": 5, "failureThreshold": 3 },
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
        },
    });
    let pod = serde_json::to_string_pretty(&pod).unwrap_or_default();
    format!("# Written by `baton init --static-pod`. It needs no kubeconfig, and no apiserver.\n{pod}\n")
}

/// Those of deploy/baton.service, as the kubelet spells them. A container has none of the host's sockets, and what an instance that systemd
/// started has pinned belongs to another user.
const CAPABILITIES: [&str; 6] = ["NET_BIND_SERVICE", "BPF", "PERFMON", "NET_ADMIN", "NET_RAW", "DAC_OVERRIDE"];

#[cfg(test)]
mod tests {
    use yaml_rust2::{Yaml, YamlLoader};

    use super::*;

    #[test]
    fn the_unit_is_the_shipped_one_with_this_hosts_paths() {
        let text = unit(Path::new("/opt/baton"), Path::new("/etc/b.toml"));
        assert!(text.contains("\nExecStart=/opt/baton run -c /etc/b.toml\n"), "{text}");
        assert!(!text.contains("/usr/bin/baton"));
        assert_eq!(unit(Path::new("/usr/bin/baton"), Path::new("/etc/baton/baton.toml")), SHIPPED);
    }

    #[test]
    fn the_static_pod_has_the_units_rights_the_hosts_network_and_only_the_certificate() {
        let text =
            static_pod("example.com/b:1", Path::new("/etc/baton/baton.toml"), Some("/etc/kubernetes/pki/ca.crt"));
        let pod = &YamlLoader::load_from_str(&text).unwrap()[0];
        assert_eq!((pod["kind"].as_str(), pod["apiVersion"].as_str()), (Some("Pod"), Some("v1")));
        assert_eq!(pod["metadata"]["namespace"].as_str(), Some("kube-system"));
        let spec = &pod["spec"];
        assert_eq!(spec["hostNetwork"].as_bool(), Some(true));
        assert_eq!(spec["priorityClassName"].as_str(), Some("system-node-critical"));
        let container = &spec["containers"][0];
        assert_eq!(container["image"].as_str(), Some("example.com/b:1"));
        let command: Vec<_> = container["command"].as_vec().unwrap().iter().filter_map(Yaml::as_str).collect();
        assert_eq!(command, ["baton", "run", "-c", "/etc/baton/baton.toml"]);
        let added = container["securityContext"]["capabilities"]["add"].as_vec().unwrap();
        let added: Vec<_> = added.iter().filter_map(Yaml::as_str).map(|name| format!("CAP_{name}")).collect();
        let bounding = SHIPPED.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
        let of_unit: Vec<_> = bounding.split(' ').map(|it| it.replace("DAC_READ_SEARCH", "DAC_OVERRIDE")).collect();
        assert_eq!(added, of_unit);
        let volumes = spec["volumes"].as_vec().unwrap();
        let path = |volume: &Yaml| volume["hostPath"]["path"].as_str().unwrap().to_owned();
        let paths: Vec<_> = volumes.iter().map(path).collect();
        assert_eq!(paths, ["/etc/baton", "/sys/fs/bpf", "/run/baton", "/var/lib/baton", "/etc/kubernetes/pki/ca.crt"]);
        let mounts = container["volumeMounts"].as_vec().unwrap();
        for (mount, volume) in mounts.iter().zip(volumes) {
            assert_eq!((&mount["name"], mount["mountPath"].as_str()), (&volume["name"], Some(&*path(volume))));
        }
        assert!(!text.contains("kubeconfig\":"), "{text}");
    }

    /// deploy/prometheus has them for the Prometheus operator.
    #[test]
    fn the_monitors_find_the_static_pod_and_the_service_with_its_endpoints() {
        let documents = |text: &str| YamlLoader::load_from_str(text).unwrap();
        let pod_monitor = &documents(include_str!("../../../deploy/prometheus/podmonitor.yml"))[0];
        let pod = &documents(&static_pod("b:1", Path::new("/etc/baton/baton.toml"), None))[0];
        assert_eq!(pod_monitor["spec"]["selector"]["matchLabels"], pod["metadata"]["labels"]);
        assert_eq!(pod_monitor["metadata"]["namespace"], pod["metadata"]["namespace"]);
        let port = &pod_monitor["spec"]["podMetricsEndpoints"][0]["portNumber"];

        let [service, endpoints, monitor] =
            &documents(include_str!("../../../deploy/prometheus/servicemonitor.yml"))[..]
        else {
            panic!("three documents")
        };
        assert_eq!(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"]);
        assert_eq!(endpoints["metadata"]["labels"]["kubernetes.io/service-name"], service["metadata"]["name"]);
        let of_service = &service["spec"]["ports"][0];
        assert_eq!(monitor["spec"]["endpoints"][0]["port"], of_service["name"]);
        assert_eq!(
            (&endpoints["ports"][0]["name"], &endpoints["ports"][0]["port"]),
            (&of_service["name"], &of_service["port"])
        );
        assert_eq!((port, port.as_i64()), (&of_service["port"], Some(9472)));
    }
}
