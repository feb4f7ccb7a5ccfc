//! Looks at the cluster's own nodes, by `baton nodes` of each instance of the plan.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::order::{GOOD, run};
use super::plan::PlanInstance;
use crate::admin::nodes::{NodeRowState, NodesReport};

/// Between two looks at one instance, and the limit of one: a host may be gone, on purpose.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// What one instance says.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeLook {
    /// Nodes that are silent, each with ms since its last byte or its last connection.
    pub silent: Vec<(String, u64)>,
    /// `None`: it has not answered, or it knows no nodes.
    pub nodes: Option<usize>,
    /// Why it does not answer.
    pub error: Option<String>,
}

/// Looks until it is dropped.
#[derive(Debug)]
pub(super) struct NodeGuard {
    instances: Vec<(String, watch::Receiver<NodeLook>, AbortHandle)>,
}

impl NodeGuard {
    /// Returns after the first look at each.
    pub(super) async fn start(instances: &[PlanInstance]) -> Self {
        let mut all = Vec::new();
        for instance in instances {
            let mut command = instance.command.clone();
            command.extend(["--json", "nodes"].map(str::to_owned));
            let (tell, told) = watch::channel(look(&command).await);
            let task = tokio::spawn(async move {
                loop {
                    sleep(LOOK_EVERY).await;
                    tell.send_replace(look(&command).await);
                }
            });
            all.push((instance.name.clone(), told, task.abort_handle()));
        }
        Self { instances: all }
    }

    /// The node that is silent for longest, the instance that says so, and for how many ms.
    pub(super) fn worst(&self) -> Option<(String, String, u64)> {
        let all = self.instances.iter().flat_map(|(instance, told, _)| {
            let look = told.borrow();
            look.silent.iter().map(|(node, ms)| (node.clone(), instance.clone(), *ms)).collect::<Vec<_>>()
        });
        all.max_by_key(|(.., ms)| *ms)
    }

    /// The instances with their latest looks.
    pub(super) fn looks(&self) -> Vec<(String, NodeLook)> {
        self.instances.iter().map(|(name, told, _)| (name.clone(), told.borrow().clone())).collect()
    }
}

impl Drop for NodeGuard {
    fn drop(&mut self) {
        self.instances.iter().for_each(|(.., task)| task.abort());
    }
}

async fn look(command: &[String]) -> NodeLook {
    let ran = run(command, GOOD, LOOK_LIMIT).await;
    if let Some(error) = ran.failed {
        let error = if ran.said.is_empty() { error } else { format!("{error}: {}", ran.said) };
        return NodeLook { error: Some(error), ..NodeLook::default() };
    }
    match serde_json::from_slice::<NodesReport>(&ran.out) {
        Err(error) => {
            NodeLook { error: Some(format!("its answer is not that of baton nodes: {error}")), ..NodeLook::default() }
        }
        Ok(report) => {
            let silent = report.nodes.iter().filter_map(|row| match row.state {
                NodeRowState::Silent { for_ms, .. } => Some((row.node.clone(), for_ms)),
                _ => None,
            });
            NodeLook { silent: silent.collect(), nodes: report.source.map(|_| report.nodes.len()), error: None }
        }
    }
}
