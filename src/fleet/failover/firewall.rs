//! Baton's own nftables table. It lets packets that a failover needs pass a firewall that drops untracked packets (`ct
//! state invalid drop`): the segments that the failover sends, and, without an offload engine to answer them, the
//! packets to the VIP's ports.

use std::fmt::Write as _;
use std::io;
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::watch;

use crate::addr::VipAddr;
use crate::essential::Tasks;
use crate::model::untracked;

/// The mark of packets that Baton sends here and that belong to no connection of this host: "baton" on a telephone's
/// keys.
pub(super) const MARK: u32 = 22866;

const TABLE: &str = "baton";

/// A task that keeps the table as last requested. nft may take seconds, and no caller waits for it.
#[derive(Debug)]
pub(super) struct Firewall {
    wanted: watch::Sender<String>,
    _task: Tasks,
}

impl Firewall {
    /// Needs a tokio runtime.
    pub(super) fn open() -> Self {
        let (wanted, mut asked) = watch::channel(String::new());
        let task = Tasks::default();
        task.spawn("firewall", async move {
            while asked.changed().await.is_ok() {
                let rules = asked.borrow_and_update().clone();
                if let Err(error) = feed(&rules).await {
                    tracing::info!(%error, "cannot add the nftables table \"inet baton\"; a firewall that drops untracked packets would stop resets");
                }
            }
        });
        Self { wanted, _task: task }
    }

    /// Requests the table, or requests it anew.
    pub(super) fn raise(&self, vips: &[VipAddr], carries: bool) {
        self.wanted.send_replace(rules(vips, carries));
    }
}

/// Deletes the table.
pub(super) async fn lower() -> io::Result<()> {
    feed(&format!("table inet {TABLE}\ndelete table inet {TABLE}\n")).await
}

fn rules(vips: &[VipAddr], carries: bool) -> String {
    let mut ports = [String::new(), String::new()];
    for vip in vips.iter().filter(|_| !carries) {
        let vip = vip.socket_addr();
        let _ = writeln!(ports[0], "{}", untracked::coming(vip).join("\n"));
        let _ = writeln!(ports[1], "{}", untracked::going(vip));
    }
    let [coming, going] = ports;
    format!(
        "table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n\
         chain coming {{\ntype filter hook prerouting priority raw\n{coming}}}\n\
         chain going {{\ntype filter hook output priority raw\nmeta mark {MARK} notrack\n{going}}}\n}}\n"
    )
}

async fn feed(rules: &str) -> io::Result<()> {
    let mut nft = Command::new("nft");
    nft.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut nft = nft.spawn()?;
    if let Some(mut input) = nft.stdin.take() {
        input.write_all(rules.as_bytes()).await?;
    }
    let output = nft.wait_with_output().await?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_offload_only_own_segments_are_untracked() {
        let vips = ["10.0.0.100:6443", "[2001:db8::1]:6443"].map(|vip| VipAddr::new(vip.parse().unwrap()));
        let without = rules(&vips, false);
        assert!(without.contains("ip daddr 10.0.0.100 tcp dport 6443 notrack"));
        assert!(without.contains("ip6 saddr 2001:db8::1 tcp sport 6443 notrack"));
        assert_eq!(rules(&vips, true).matches("notrack").count(), 1);
    }
}
