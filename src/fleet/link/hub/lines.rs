//! The sources of links: tasks that connect to the peers with higher names, again and again, and one that listens for
//! the others.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::config;
use crate::essential::Tasks;
use crate::fleet::link::connection::{Input, Site};
use crate::fleet::link::secure::LinkError;
use crate::model::fleet::NOT_LISTENING;
use crate::sys::clock::now_ns;
use crate::sys::socket::listen_alone;

/// Pause between two tries to connect: short, for a peer that restarts; longer when only an operator can fix the cause.
const AGAIN: Duration = Duration::from_millis(250);
/// After a link that has lasted for [`LASTED_NS`]: until there is another one, neither instance hears of the other's new flows.
const AFTER_LINK: Duration = Duration::from_millis(20);
const LASTED_NS: u64 = 1_000_000_000;
const AGAIN_FIXED: Duration = Duration::from_secs(2);
/// Pause between two tries to listen.
const LISTEN_AGAIN: Duration = Duration::from_millis(250);

/// Connections that the kernel may hold for the link.
const BACKLOG: i32 = 1024;

/// Limits for connections in the handshake at once: one for the peers' addresses, one for all other addresses together.
const GREETED_MAX: usize = 16;
const STRANGERS_MAX: usize = 4;

/// The tasks behind all links. Dropping it ends them, but not the admitted links: only the hub ends these.
#[derive(Debug)]
pub(super) struct Lines {
    tasks: Arc<Tasks>,
}

impl Lines {
    /// Listens, and connects to those peers of `settings` that this instance connects to.
    pub(super) fn open(site: &Site, settings: &config::Peers) -> Self {
        Self::open_after(Arc::default(), site, settings)
    }

    /// As [`Lines::open`], in place of the old tasks.
    pub(super) fn open_anew(&mut self, site: &Site, settings: &config::Peers) {
        *self = Self::open_after(self.tasks.clone(), site, settings);
    }

    fn open_after(before: Arc<Tasks>, site: &Site, settings: &config::Peers) -> Self {
        let tasks = Tasks::default();
        for peer in settings.peers.iter().filter(|peer| settings.name < peer.name) {
            tasks.spawn("peer connects", connect(site.clone(), settings.listen, peer.clone()));
        }
        tasks.spawn("peer listener", listen(before, site.clone(), settings.clone()));
        Self { tasks: Arc::new(tasks) }
    }

    /// Stops listening and connecting.
    pub(super) fn shut(&self) {
        self.tasks.end();
    }
}

async fn connect(site: Site, own: SocketAddr, peer: config::Peer) {
    loop {
        // A task of its own, so that a reload that ends this task does not end an admitted link.
        let (link, name) = (site.clone(), peer.name.clone());
        let began_ns = now_ns();
        let made = tokio::spawn(async move { link.make(own, &name, peer.address).await }).await;
        let pause = match made {
            Ok(Ok(())) if now_ns().saturating_sub(began_ns) >= LASTED_NS => AFTER_LINK,
            Ok(Ok(())) => AGAIN,
            Ok(Err(error)) => {
                let pause = if is_lasting(&error) { AGAIN_FIXED } else { AGAIN };
                let why = explain(&error);
                let _ = site.inputs.send(Input::Failed { peer: peer.name.clone(), why }).await;
                pause
            }
            Err(_) => AGAIN_FIXED,
        };
        // With jitter, so that instances that start together do not collide at every try.
        sleep(pause.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
    }
}

/// Listens once the tasks of `before` have ended: one of them may hold the address.
async fn listen(before: Arc<Tasks>, site: Site, settings: config::Peers) {
    before.stop().await;
    drop(before);
    let listener = bind(settings.listen).await;
    let (known, strangers) = (Arc::new(Semaphore::new(GREETED_MAX)), Arc::new(Semaphore::new(STRANGERS_MAX)));
    let is_known = |ip: IpAddr| settings.peers.iter().any(|peer| peer.address.ip() == ip);
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection on the peer link");
                sleep(LISTEN_AGAIN).await;
                continue;
            }
        };
        let room = if is_known(from.ip().to_canonical()) { &known } else { &strangers };
        let Ok(permit) = room.clone().try_acquire_owned() else { continue };
        let site = site.clone();
        tokio::spawn(async move {
            if let Err(error) = site.take(stream, permit).await {
                let said_nothing = matches!(error, LinkError::Closed);
                let _ = site.inputs.send(Input::Stranger { from, why: explain(&error), said_nothing }).await;
            }
        });
    }
}

/// Tries until it succeeds: the process before this one may still hold the address, or the host may not have it yet.
async fn bind(address: SocketAddr) -> TcpListener {
    let mut said: Option<io::ErrorKind> = None;
    loop {
        match listen_alone(address, BACKLOG).and_then(TcpListener::from_std) {
            Ok(listener) => return listener,
            Err(error) => {
                if said != Some(error.kind()) {
                    tracing::warn!(%address, %error, "cannot listen for peers; trying again");
                    said = Some(error.kind());
                }
                sleep(LISTEN_AGAIN).await;
            }
        }
    }
}

/// Whether another try in a moment would fail in the same way.
fn is_lasting(error: &LinkError) -> bool {
    match error {
        LinkError::Key | LinkError::Identity(_) | LinkError::Version { .. } | LinkError::NotAPeer => true,
        LinkError::Name(_) => true,
        LinkError::Refused(_) | LinkError::RefusedByIt(_) => true,
        LinkError::Io(error) => error.kind() == io::ErrorKind::AddrNotAvailable,
        _ => false,
    }
}

fn explain(error: &LinkError) -> String {
    match error {
        LinkError::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => NOT_LISTENING.to_owned(),
        LinkError::Io(error) if error.kind() == io::ErrorKind::ConnectionReset => "it reset the connection".to_owned(),
        LinkError::Io(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            "peers.listen is not an address of this host".to_owned()
        }
        other => other.to_string(),
    }
}
