//! The running admin servers: opened at the start, and moved by a reload without an interruption of their connections.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use tokio::net::{TcpListener, UnixListener};

use super::Admin;
use super::http::{self, HttpLimits};
use super::session::{self, SessionLimits};
use super::unix::{self, OpenSocketError, SocketFile};
use crate::config;
use crate::essential::Tasks;

/// Why an admin server cannot be opened.
#[derive(Debug, Error)]
pub enum OpenDoorError {
    #[error("admin.http: cannot listen on {address}: {source}")]
    Http { address: SocketAddr, source: io::Error },
    #[error("admin.socket: {0}")]
    Socket(#[from] OpenSocketError),
}

/// Both servers. Dropping it closes them and removes the socket's file; connections that were accepted complete.
#[derive(Debug)]
pub struct Doors {
    admin: Arc<Admin>,
    http: Option<HttpDoor>,
    socket: SocketDoor,
}

/// New listening sockets that are open but not served yet: a reload opens them before it changes anything.
#[derive(Debug)]
pub struct Prepared {
    /// `None`: unchanged.
    http: Option<Option<(TcpListener, SocketAddr)>>,
    socket: Option<(UnixListener, SocketFile)>,
}

#[derive(Debug)]
struct HttpDoor {
    /// As configured: the port may be 0.
    asked: SocketAddr,
    bound: SocketAddr,
    /// A duplicate of the listening socket's descriptor, for another process.
    spare: OwnedFd,
    /// `None` while it is closed.
    task: Option<Tasks>,
}

#[derive(Debug)]
struct SocketDoor {
    file: SocketFile,
    spare: OwnedFd,
    task: Option<Tasks>,
}

/// An admin server's listening socket on its way to another process.
#[derive(Debug)]
pub(crate) enum SharedListener {
    /// The address as configured.
    Http(SocketAddr, OwnedFd),
    Socket(PathBuf, OwnedFd),
}

/// The servers of a process that does not serve yet: opened, or inherited from a process that still serves them.
/// Dropping it leaves the inherited ones unchanged.
#[derive(Debug)]
pub(crate) struct WaitingDoors {
    http: Option<(TcpListener, SocketAddr)>,
    socket: WaitingSocket,
}

#[derive(Debug)]
enum WaitingSocket {
    Opened(UnixListener, SocketFile),
    /// The file belongs to the other process until this one serves.
    Inherited(UnixListener, PathBuf),
}

impl Doors {
    /// Opens both servers and serves them. Needs a tokio runtime.
    pub fn open(admin: Arc<Admin>, config: &config::Admin) -> Result<Self, OpenDoorError> {
        Self::serve(admin, Self::wait(config, Vec::new())?)
    }

    /// Opens both servers, or takes them from `shared`, without serving them. Needs a tokio runtime.
    pub(crate) fn wait(config: &config::Admin, shared: Vec<SharedListener>) -> Result<WaitingDoors, OpenDoorError> {
        let (mut http, mut socket) = (None, None);
        for door in shared {
            match door {
                SharedListener::Http(address, fd) if config.http == Some(address) => http = Some(fd),
                SharedListener::Socket(path, fd) if config.socket == path => socket = Some(fd),
                _ => {}
            }
        }
        let open = |address| match http {
            Some(fd) => inherit_http(address, fd).map(|listener| (listener, address)),
            None => open_http(address).map(|listener| (listener, address)),
        };
        let http = config.http.map(open).transpose()?;
        let socket = match socket {
            Some(fd) => WaitingSocket::Inherited(unix::inherit(&config.socket, fd)?, config.socket.clone()),
            None => {
                let (listener, file) = unix::open(&config.socket)?;
                WaitingSocket::Opened(listener, file)
            }
        };
        Ok(WaitingDoors { http, socket })
    }

    /// Serves the waiting servers.
    pub(crate) fn serve(admin: Arc<Admin>, waiting: WaitingDoors) -> Result<Self, OpenDoorError> {
        let opened = match waiting.socket {
            WaitingSocket::Opened(listener, file) => (listener, file),
            WaitingSocket::Inherited(listener, path) => (listener, SocketFile::claim(&path)?),
        };
        let socket = serve_socket(&admin, opened)?;
        let http = waiting.http.map(|opened| serve_http(&admin, opened)).transpose()?;
        Ok(Self { admin, http, socket })
    }

    /// Their listening sockets, for another process.
    pub(crate) fn share(&self) -> io::Result<Vec<SharedListener>> {
        let http = self
            .http
            .as_ref()
            .map(|door| Ok::<_, io::Error>(SharedListener::Http(door.asked, door.spare.try_clone()?)));
        let socket = SharedListener::Socket(self.socket.file.path().to_owned(), self.socket.spare.try_clone()?);
        http.into_iter().chain([Ok(socket)]).collect()
    }

    /// Accepts no more connections, which then wait in the backlog, or (not `shut`) accepts them again. Needs a tokio
    /// runtime.
    pub(crate) fn set_shut(&mut self, shut: bool) -> io::Result<()> {
        if shut {
            self.socket.task = None;
            self.http.iter_mut().for_each(|door| door.task = None);
            return Ok(());
        }
        let spare = std::os::unix::net::UnixListener::from(self.socket.spare.try_clone()?);
        self.socket.task = Some(served_socket(&self.admin, UnixListener::from_std(spare)?));
        if let Some(door) = &mut self.http {
            let spare = std::net::TcpListener::from(door.spare.try_clone()?);
            door.task = Some(served_http(&self.admin, TcpListener::from_std(spare)?));
        }
        Ok(())
    }

    /// Leaves the socket's file to the process that now serves it.
    pub(crate) fn leave(mut self) {
        self.socket.file.leave();
    }

    /// Opens the sockets that `config` moves. On an error everything stays as it was.
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

    /// Serves the prepared sockets and closes those that they replace.
    pub fn change(&mut self, prepared: Prepared) -> Result<(), OpenDoorError> {
        if let Some(http) = prepared.http {
            self.http = http.map(|opened| serve_http(&self.admin, opened)).transpose()?;
        }
        if let Some(socket) = prepared.socket {
            self.socket = serve_socket(&self.admin, socket)?;
        }
        Ok(())
    }

    /// The address of the HTTP server, if there is one.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|door| door.bound)
    }

    pub fn socket_path(&self) -> &Path {
        self.socket.file.path()
    }
}

impl WaitingDoors {
    /// The future address of the HTTP server, if there will be one.
    pub(crate) fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().and_then(|(listener, _)| listener.local_addr().ok())
    }

    pub(crate) fn socket_path(&self) -> &Path {
        match &self.socket {
            WaitingSocket::Opened(_, file) => file.path(),
            WaitingSocket::Inherited(_, path) => path,
        }
    }
}

fn open_http(address: SocketAddr) -> Result<TcpListener, OpenDoorError> {
    http::open(address).map_err(|source| OpenDoorError::Http { address, source })
}

fn inherit_http(address: SocketAddr, fd: OwnedFd) -> Result<TcpListener, OpenDoorError> {
    let listener = std::net::TcpListener::from(fd);
    let ready = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
    ready.map_err(|source| OpenDoorError::Http { address, source })
}

fn serve_http(admin: &Arc<Admin>, (listener, asked): (TcpListener, SocketAddr)) -> Result<HttpDoor, OpenDoorError> {
    let failed = |source| OpenDoorError::Http { address: asked, source };
    let bound = listener.local_addr().map_err(failed)?;
    let spare = listener.as_fd().try_clone_to_owned().map_err(failed)?;
    Ok(HttpDoor { asked, bound, spare, task: Some(served_http(admin, listener)) })
}

fn serve_socket(
    admin: &Arc<Admin>,
    (listener, file): (UnixListener, SocketFile),
) -> Result<SocketDoor, OpenSocketError> {
    let failed = |source| OpenSocketError::Io { path: file.path().to_owned(), source };
    let spare = listener.as_fd().try_clone_to_owned().map_err(failed)?;
    Ok(SocketDoor { file, spare, task: Some(served_socket(admin, listener)) })
}

fn served_http(admin: &Arc<Admin>, listener: TcpListener) -> Tasks {
    let serve = http::serve(admin.clone(), listener, HttpLimits::default());
    let tasks = Tasks::default();
    tasks.spawn("http door", serve);
    tasks
}

fn served_socket(admin: &Arc<Admin>, listener: UnixListener) -> Tasks {
    let serve = session::serve(admin.clone(), listener, SessionLimits::default());
    let tasks = Tasks::default();
    tasks.spawn("admin socket", serve);
    tasks
}
