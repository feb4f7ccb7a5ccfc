//! A worker of k3s or RKE2: it has no apiserver, and a balancer of its own for its kubelet.

use super::sources::{K3S_CONFIG, RKE2_CONFIG, RancherConfig};
use super::{Distribution, K3S_CA, RKE2_CA, SetupHost, SetupRefusal};
use crate::translate::ForeignFile;

/// The agent's copies of the CA, which are there once it has joined.
pub(super) const K3S_AGENT_CA: &str = "/var/lib/rancher/k3s/agent/server-ca.crt";
pub(super) const RKE2_AGENT_CA: &str = "/var/lib/rancher/rke2/agent/server-ca.crt";

/// The agent's own balancer, `lb-server-port` of docs.k3s.io/cli/agent and docs.rke2.io/reference/linux_agent_config. It is for the
/// supervisor; RKE2, whose supervisor has a port of its own, has another one for the apiserver on the port below.
const LB_SERVER_PORT: u16 = 6444;

/// What config.yaml says to an agent of k3s or RKE2.
pub(super) struct AgentConfig {
    /// It joins a cluster, as an agent or as a further server.
    pub joins: bool,
    pub balancer_port: Option<u16>,
}

pub(super) fn rancher_agent(files: &[&ForeignFile]) -> Result<AgentConfig, SetupRefusal> {
    let config = RancherConfig::read(files)?;
    let balancer_port = config.port("lb-server-port").ok().flatten();
    let joins = config.values.get("server").is_some_and(|value| !value.texts.is_empty());
    Ok(AgentConfig { joins, balancer_port })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RancherAgent {
    pub kind: Distribution,
    /// The file that says so.
    pub place: String,
    /// Whether it has joined. Before, a further server of the cluster has the same file.
    pub has_joined: bool,
    balancer_port: u16,
}

impl RancherAgent {
    pub(super) fn find(host: &SetupHost) -> Result<Option<Self>, SetupRefusal> {
        let all = [
            (Distribution::K3s, K3S_CA, K3S_AGENT_CA, K3S_CONFIG),
            (Distribution::Rke2, RKE2_CA, RKE2_AGENT_CA, RKE2_CONFIG),
        ];
        for (kind, server_ca, agent_ca, path) in all {
            if host.has_authority(server_ca) {
                continue;
            }
            let files = host.files_of(path);
            let file = (!files.is_empty()).then(|| rancher_agent(&files)).transpose()?;
            let balancer_port = file.as_ref().and_then(|it| it.balancer_port).unwrap_or(LB_SERVER_PORT);
            let has_joined = host.has_authority(agent_ca);
            let place = match file.filter(|it| it.joins) {
                _ if has_joined => format!("{agent_ca} is there, and {server_ca} is not"),
                Some(_) => format!("{path} has \"server\", and {server_ca} is not there"),
                None => continue,
            };
            return Ok(Some(Self { kind, place, has_joined, balancer_port }));
        }
        Ok(None)
    }

    /// Fails unless `port` is given, and is not the agent's own.
    pub(super) fn refuse_its_ports(&self, port: Option<u16>) -> Result<(), SetupRefusal> {
        let mut taken = vec![self.balancer_port];
        if self.kind == Distribution::Rke2 {
            taken.push(self.balancer_port.saturating_sub(1));
        }
        match port {
            Some(port) if !taken.contains(&port) => Ok(()),
            _ => Err(SetupRefusal::AgentHasItsOwn { place: self.place.clone(), program: self.kind.name(), taken }),
        }
    }
}
