//! The commands of the admin socket.

mod evacuate;
mod events;
mod flows;
mod kill;
mod names;
mod upgrade;
mod what_if;

use std::io;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::Admin;
use super::control::{OrderRefused, ReloadRefused};
use super::protocol::{About, BackendName, Command, Ordered, Rebalance, Refusal, VERSION};
use super::session::Replies;
use super::status::{backend_status, peers_report, vip_report};
use crate::config::FileOwner;
use crate::model::health::Order;
use crate::sys::clock::now_ns;
use crate::table::backend::BackendEntry;

/// Carries out `command`. Listings go out through `replies`; the result is the last line.
/// An error means that the client is gone.
pub(super) async fn execute(
    admin: &Arc<Admin>,
    command: Command,
    replies: &mut Replies,
) -> io::Result<Result<Value, Refusal>> {
    Ok(match command {
        Command::Version {} => Ok(json(&About {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: VERSION,
            pid: std::process::id(),
            started_at_ns: admin.started_at_ns(),
            takes_orders: replies.takes_orders(),
        })),
        Command::Status {} => Ok(json(&admin.status().await)),
        Command::Process {} => Ok(json(&FileOwner::of(&admin.config.load()))),
        Command::Backends { backend } => backends(admin, backend).await,
        Command::Flows(filter) => flows::list(admin, &filter, replies).await?,
        Command::Events(filter) => Ok(events::list(admin, &filter, replies).await?),
        Command::Drain { backend } => order(admin, &backend, Order::Drain).await,
        Command::Undrain { backend } => order(admin, &backend, Order::Undrain).await,
        Command::Eject { backend } => order(admin, &backend, Order::Eject).await,
        Command::Kill { target } => kill::kill(admin, &target).await,
        Command::CheckKill { target } => kill::check(admin, &target).await,
        Command::WhatIf(asked) => admin.aside(move |admin| what_if::answer(admin, &asked)).await.map(|it| json(&it)),
        Command::Reload {} => reload(admin).await,
        Command::Diff { path } => match admin.control.diff(path).await {
            Ok(diff) => Ok(json(&diff)),
            Err(refused) => Err(refused.into()),
        },
        Command::Rebalance { dry_run } => rebalance(admin, dry_run, replies).await?,
        Command::Upgrade(asked) => upgrade::upgrade(admin, asked, replies).await?,
        Command::Peers {} => Ok(json(&peers_report(admin))),
        Command::Vip {} => Ok(json(&vip_report(admin))),
        Command::Nodes {} => Ok(json(&admin.aside(super::nodes::report).await)),
        Command::Evacuate(asked) => evacuate::evacuate(admin, asked, replies).await?,
        Command::CancelEvacuation {} => evacuate::take_back(admin).await,
        Command::CheckEvacuation(asked) => {
            Ok(json(&admin.aside(move |admin| admin.control.check_evacuation(&asked)).await))
        }
        Command::CheckUpgrade(asked) => Ok(json(&admin.control.check_upgrade(asked).await)),
    })
}

async fn backends(admin: &Arc<Admin>, name: Option<BackendName>) -> Result<Value, Refusal> {
    let only = name.map(|name| names::addresses(&admin.table.registry, &name)).transpose()?;
    let status = admin.status().await;
    let wanted = |frontend: &str, backend: &str| {
        let is = |it: &Arc<BackendEntry>| *it.frontend.name == *frontend && it.label() == backend;
        only.as_ref().is_none_or(|only| only.iter().any(is))
    };
    Ok(json(&status.backends().filter(|backend| wanted(&backend.frontend, &backend.name)).collect::<Vec<_>>()))
}

async fn order(admin: &Admin, name: &BackendName, order: Order) -> Result<Value, Refusal> {
    let entry = names::backend(&admin.table.registry, name)?;
    admin.control.order(entry.id, order).await.map_err(|refused| Refusal::Order { reason: refused.to_string() })?;
    let backend = backend_status(&entry, now_ns());
    let config = admin.config.load();
    let drain_timeout_ms = (order == Order::Drain)
        .then(|| config.frontends.iter().find(|frontend| frontend.name == entry.frontend.name))
        .flatten()
        .map(|frontend| frontend.drain_timeout.as_millis() as u64);
    Ok(json(&Ordered { backend, drain_timeout_ms }))
}

/// Moves flows, and waits until that is done. An error means that the client is gone; the flows are moved all the same.
async fn rebalance(admin: &Admin, dry_run: bool, replies: &mut Replies) -> io::Result<Result<Value, Refusal>> {
    let begun = Rebalance { dry_run, plan: admin.control.rebalance_plan(), done: Vec::new() };
    if dry_run {
        return Ok(Ok(json(&begun)));
    }
    replies.item(&begun);
    replies.flush().await?;
    let done = admin.control.rebalance().await;
    let refused = |refused: OrderRefused| Refusal::Order { reason: refused.to_string() };
    Ok(done.map(|done| json(&Rebalance { done, ..begun })).map_err(refused))
}

async fn reload(admin: &Admin) -> Result<Value, Refusal> {
    match admin.control.reload().await {
        Ok(reloaded) => Ok(json(&reloaded)),
        Err(refused) => Err(refused.into()),
    }
}

impl From<ReloadRefused> for Refusal {
    fn from(refused: ReloadRefused) -> Self {
        match refused {
            ReloadRefused::Invalid { errors, findings } => Self::Reload { errors, findings },
            ReloadRefused::Unread { why } => Self::Order { reason: format!("the running configuration stays: {why}") },
        }
    }
}

fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("replies are plain data with string keys")
}
