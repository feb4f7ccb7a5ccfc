//! The doors as they stand open: opened at the start, and moved by a reload without shutting out anyone who is inside.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use thiserror::Error;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;

use super::Admin;
use super::http::{self, HttpLimits};
use super::session::{self, SessionLimits};
use super::unix::{self, OpenSocketError, SocketFile};
use crate::config;

/// Why a door cannot be opened.
#[derive(Debug, Error)]
pub enum OpenDoorError {
    #[error("admin.http: cannot listen on {address}: {source}")]
    Http { address: SocketAddr, source: io::Error },
    #[error("admin.socket: {0}")]
    Socket(#[from] OpenSocketError),
}

/// Both doors. Dropping it shuts them and removes the socket's file; connections that were begun go on to their end.
#[derive(Debug)]
pub struct Doors {
    admin: Arc<Admin>,
    http: Option<HttpDoor>,
    socket: SocketDoor,
}

/// New doors that are open but not yet served: what a reload gets ready before it changes anything.
#[derive(Debug)]
pub struct Prepared {
    /// `None`: stays as it is.
    http: Option<Option<(TcpListener, SocketAddr)>>,
    socket: Option<(UnixListener, SocketFile)>,
}

#[derive(Debug)]
struct HttpDoor {
    /// As configured: its port may be 0.
    asked: SocketAddr,
    bound: SocketAddr,
    _task: Served,
}

#[derive(Debug)]
struct SocketDoor {
    file: SocketFile,
    _task: Served,
}

/// A task that ends with its owner.
#[derive(Debug)]
struct Served(JoinHandle<()>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Doors {
    /// Opens both doors and serves them. Needs a tokio runtime.
    pub fn open(admin: Arc<Admin>, config: &config::Admin) -> Result<Self, OpenDoorError> {
        let socket = serve_socket(&admin, unix::open(&config.socket)?);
        let open = |address| serve_http(&admin, (open_http(address)?, address));
        let http = config.http.map(open).transpose()?;
        Ok(Self { admin, http, socket })
    }

    /// Opens what `config` moves to another place. On an error everything stays as it was.
    pub fn prepare(&self, config: &config::Admin) -> Result<Prepared, OpenDoorError> {
        let same_http = self.http.as_ref().map(|door| door.asked) == config.http;
        let http = match config.http {
            _ if same_http => None,
            None => Some(None),
            Some(address) => Some(Some((open_http(address)?, address))),
        };
        let same_socket = self.socket.file.path() == config.socket;
        let socket = if same_socket { None } else { Some(unix::open(&config.socket)?) };
        Ok(Prepared { http, socket })
    }

    /// Serves what was prepared and shuts what it replaces.
    pub fn change(&mut self, prepared: Prepared) -> Result<(), OpenDoorError> {
        if let Some(http) = prepared.http {
            self.http = http.map(|opened| serve_http(&self.admin, opened)).transpose()?;
        }
        if let Some(socket) = prepared.socket {
            self.socket = serve_socket(&self.admin, socket);
        }
        Ok(())
    }

    /// Where the HTTP door is, if there is one.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|door| door.bound)
    }

    pub fn socket_path(&self) -> &Path {
        self.socket.file.path()
    }
}

fn open_http(address: SocketAddr) -> Result<TcpListener, OpenDoorError> {
    http::open(address).map_err(|source| OpenDoorError::Http { address, source })
}

fn serve_http(admin: &Arc<Admin>, (listener, asked): (TcpListener, SocketAddr)) -> Result<HttpDoor, OpenDoorError> {
    let bound = listener.local_addr().map_err(|source| OpenDoorError::Http { address: asked, source })?;
    let task = tokio::spawn(http::serve(admin.clone(), listener, HttpLimits::default()));
    Ok(HttpDoor { asked, bound, _task: Served(task) })
}

fn serve_socket(admin: &Arc<Admin>, (listener, file): (UnixListener, SocketFile)) -> SocketDoor {
    let task = tokio::spawn(session::serve(admin.clone(), listener, SessionLimits::default()));
    SocketDoor { file, _task: Served(task) }
}
