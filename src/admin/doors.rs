//! The running admin servers: opened at the start, and moved by a reload without an interruption of their connections.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use tokio::net::{TcpListener, UnixListener};

use super::Admin;
use super::http::{self, HttpLimits, HttpPages};
use super::session::{self, SessionLimits, SocketAccess};
use super::unix::{self, OpenSocketError, SocketFile};
use crate::addr::VipAddr;
use crate::config;
use crate::essential::Tasks;
use crate::sys::port_holder::PortHolder;

/// Why an admin server cannot be opened.
#[derive(Debug, Error)]
pub enum OpenDoorError {
    #[error("admin.{key}: cannot listen on {address}: {holder}")]
    HttpInUse { key: &'static str, address: SocketAddr, holder: Box<PortHolder> },
    #[error("admin.{key}: cannot listen on {address}: {source}")]
    Http { key: &'static str, address: SocketAddr, source: io::Error },
    #[error("admin.socket: {0}")]
    Socket(OpenSocketError),
    #[error("admin.group: {0}")]
    Reading(OpenSocketError),
}

/// All servers. Dropping it closes them and removes the sockets' files; connections that were accepted complete.
#[derive(Debug)]
pub struct Doors {
    admin: Arc<Admin>,
    http: Option<HttpDoor>,
    metrics: Option<HttpDoor>,
    socket: SocketDoor,
    reading: Option<SocketDoor>,
}

/// New listening sockets that are open but not served yet: a reload opens them before it changes anything.
#[derive(Debug)]
pub struct Prepared {
    /// `None`: unchanged.
    http: Option<Option<OpenedHttp>>,
    metrics: Option<Option<OpenedHttp>>,
    socket: Option<OpenedSocket>,
    reading: ReadingChange,
}

/// What a reload does to the socket that only reads.
#[derive(Debug)]
enum ReadingChange {
    Same,
    /// The file is another group's.
    Group(u32),
    /// With its group.
    Moved(Option<(OpenedSocket, u32)>),
}

type OpenedHttp = (TcpListener, SocketAddr);
type OpenedSocket = (UnixListener, SocketFile);

#[derive(Debug)]
struct HttpDoor {
    /// As configured: the port may be 0.
    asked: SocketAddr,
    bound: SocketAddr,
    pages: HttpPages,
    /// A duplicate of the listening socket's descriptor, for another process.
    spare: OwnedFd,
    /// `None` while it is closed.
    task: Option<Tasks>,
}

#[derive(Debug)]
struct SocketDoor {
    file: SocketFile,
    access: SocketAccess,
    /// Of the group that may connect.
    gid: Option<u32>,
    spare: OwnedFd,
    task: Option<Tasks>,
}

/// An admin server's listening socket on its way to another process, which finds by the address or the path what it is for.
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
    http: Option<OpenedHttp>,
    metrics: Option<OpenedHttp>,
    socket: WaitingSocket,
    reading: Option<(WaitingSocket, u32)>,
}

#[derive(Debug)]
enum WaitingSocket {
    Opened(UnixListener, SocketFile),
    /// The file belongs to the other process until this one serves.
    Inherited(UnixListener, PathBuf),
}

impl Doors {
    /// Opens all servers and serves them. Needs a tokio runtime.
    pub fn open(admin: Arc<Admin>, config: &config::Admin) -> Result<Self, OpenDoorError> {
        Self::serve(admin, Self::wait(config, Vec::new())?)
    }

    /// Opens all servers, or takes them from `shared`, without serving them. Needs a tokio runtime.
    pub(crate) fn wait(config: &config::Admin, shared: Vec<SharedListener>) -> Result<WaitingDoors, OpenDoorError> {
        let (mut addresses, mut paths) = (Vec::new(), Vec::new());
        for door in shared {
            match door {
                SharedListener::Http(address, fd) => addresses.push((address, fd)),
                SharedListener::Socket(path, fd) => paths.push((path, fd)),
            }
        }
        let mut open = |pages: HttpPages, address| match take(&mut addresses, &address) {
            Some(fd) => inherit_http(pages, address, fd).map(|listener| (listener, address)),
            None => open_http(pages, address).map(|listener| (listener, address)),
        };
        let http = config.http.map(|address| open(HttpPages::All, address)).transpose()?;
        let metrics = config.metrics.map(|address| open(HttpPages::Metrics, address)).transpose()?;
        let mut socket = |path: &Path, gid: Option<u32>| match take(&mut paths, &path.to_owned()) {
            Some(fd) => Ok(WaitingSocket::Inherited(unix::inherit(path, fd)?, path.to_owned())),
            None => open_socket(path, gid).map(|(listener, file)| WaitingSocket::Opened(listener, file)),
        };
        let admin_socket = socket(&config.socket, None).map_err(OpenDoorError::Socket)?;
        let reading = config.group.as_ref().map(|group| {
            let opened = socket(&config.read_socket(), Some(group.gid)).map_err(OpenDoorError::Reading)?;
            Ok::<_, OpenDoorError>((opened, group.gid))
        });
        Ok(WaitingDoors { http, metrics, socket: admin_socket, reading: reading.transpose()? })
    }

    /// Serves the waiting servers.
    pub(crate) fn serve(admin: Arc<Admin>, waiting: WaitingDoors) -> Result<Self, OpenDoorError> {
        let socket = waiting.socket.begin().map_err(OpenDoorError::Socket)?;
        let socket = serve_socket(&admin, socket, None).map_err(OpenDoorError::Socket)?;
        let reading = waiting.reading.map(|(waiting, gid)| {
            let opened = waiting.begin()?;
            // The file of the other process may be another group's.
            opened.1.give_to(gid)?;
            serve_socket(&admin, opened, Some(gid))
        });
        let reading = reading.transpose().map_err(OpenDoorError::Reading)?;
        let http = waiting.http.map(|opened| serve_http(&admin, HttpPages::All, opened)).transpose()?;
        let metrics = waiting.metrics.map(|opened| serve_http(&admin, HttpPages::Metrics, opened)).transpose()?;
        Ok(Self { admin, http, metrics, socket, reading })
    }

    /// Their listening sockets, for another process.
    pub(crate) fn share(&self) -> io::Result<Vec<SharedListener>> {
        let http = self.http_doors().map(|door| Ok(SharedListener::Http(door.asked, door.spare.try_clone()?)));
        let sockets = [Some(&self.socket), self.reading.as_ref()].into_iter().flatten();
        let sockets =
            sockets.map(|door| Ok(SharedListener::Socket(door.file.path().to_owned(), door.spare.try_clone()?)));
        http.chain(sockets).collect()
    }

    /// Accepts no more connections, which then wait in the backlog, or (not `shut`) accepts them again. Needs a tokio
    /// runtime.
    pub(crate) fn set_shut(&mut self, shut: bool) -> io::Result<()> {
        for door in [Some(&mut self.socket), self.reading.as_mut()].into_iter().flatten() {
            door.task = None;
            if !shut {
                let spare = std::os::unix::net::UnixListener::from(door.spare.try_clone()?);
                door.task = Some(served_socket(&self.admin, UnixListener::from_std(spare)?, door.access));
            }
        }
        for door in [self.http.as_mut(), self.metrics.as_mut()].into_iter().flatten() {
            door.task = None;
            if !shut {
                let spare = std::net::TcpListener::from(door.spare.try_clone()?);
                door.task = Some(served_http(&self.admin, TcpListener::from_std(spare)?, door.pages));
            }
        }
        Ok(())
    }

    /// Leaves the sockets' files to the process that now serves them.
    pub(crate) fn leave(mut self) {
        self.socket.file.leave();
        self.reading.iter_mut().for_each(|door| door.file.leave());
    }

    /// Opens the sockets that `config` moves. On an error everything stays as it was.
    pub fn prepare(&self, config: &config::Admin) -> Result<Prepared, OpenDoorError> {
        let same_socket = self.socket.file.path() == config.socket;
        let socket = if same_socket { None } else { Some(unix::open(&config.socket).map_err(OpenDoorError::Socket)?) };
        Ok(Prepared {
            http: self.prepare_http(self.http.as_ref(), HttpPages::All, config.http)?,
            metrics: self.prepare_http(self.metrics.as_ref(), HttpPages::Metrics, config.metrics)?,
            socket,
            reading: self.prepare_reading(config).map_err(OpenDoorError::Reading)?,
        })
    }

    /// `None`: unchanged. The address that the other server has now is not free before the change: its socket goes over.
    fn prepare_http(
        &self,
        door: Option<&HttpDoor>,
        pages: HttpPages,
        wanted: Option<SocketAddr>,
    ) -> Result<Option<Option<OpenedHttp>>, OpenDoorError> {
        if door.map(|door| door.asked) == wanted {
            return Ok(None);
        }
        let Some(address) = wanted else { return Ok(Some(None)) };
        let listener = match self.http_doors().find(|other| other.asked == address && address.port() != 0) {
            Some(other) => inherit_http(pages, address, other.spare.try_clone().map_err(http_error(pages, address))?)?,
            None => open_http(pages, address)?,
        };
        Ok(Some(Some((listener, address))))
    }

    fn prepare_reading(&self, config: &config::Admin) -> Result<ReadingChange, OpenSocketError> {
        let Some(group) = &config.group else {
            return Ok(if self.reading.is_some() { ReadingChange::Moved(None) } else { ReadingChange::Same });
        };
        let path = config.read_socket();
        match &self.reading {
            Some(door) if door.file.path() == path && door.gid == Some(group.gid) => Ok(ReadingChange::Same),
            Some(door) if door.file.path() == path => Ok(ReadingChange::Group(group.gid)),
            _ => Ok(ReadingChange::Moved(Some((unix::open_for(&path, group.gid)?, group.gid)))),
        }
    }

    /// Serves the prepared sockets and closes those that they replace.
    pub fn change(&mut self, prepared: Prepared) -> Result<(), OpenDoorError> {
        let gid = match prepared.reading {
            ReadingChange::Group(gid) => Some(gid),
            _ => None,
        };
        if let (Some(gid), Some(door)) = (gid, &mut self.reading) {
            door.file.give_to(gid).map_err(OpenDoorError::Reading)?;
            door.gid = Some(gid);
        }
        if let Some(http) = prepared.http {
            self.http = http.map(|opened| serve_http(&self.admin, HttpPages::All, opened)).transpose()?;
        }
        if let Some(metrics) = prepared.metrics {
            self.metrics = metrics.map(|opened| serve_http(&self.admin, HttpPages::Metrics, opened)).transpose()?;
        }
        if let Some(socket) = prepared.socket {
            self.socket = serve_socket(&self.admin, socket, None).map_err(OpenDoorError::Socket)?;
        }
        if let ReadingChange::Moved(opened) = prepared.reading {
            let served = opened.map(|(opened, gid)| serve_socket(&self.admin, opened, Some(gid))).transpose();
            self.reading = served.map_err(OpenDoorError::Reading)?;
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

    fn http_doors(&self) -> impl Iterator<Item = &HttpDoor> {
        self.http.iter().chain(&self.metrics)
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

impl WaitingSocket {
    /// The file belongs to this process from now on.
    fn begin(self) -> Result<OpenedSocket, OpenSocketError> {
        match self {
            Self::Opened(listener, file) => Ok((listener, file)),
            Self::Inherited(listener, path) => Ok((listener, SocketFile::claim(&path)?)),
        }
    }
}

/// Removes and returns the value of `key`.
fn take<K: PartialEq>(from: &mut Vec<(K, OwnedFd)>, key: &K) -> Option<OwnedFd> {
    let at = from.iter().position(|(one, _)| one == key)?;
    Some(from.swap_remove(at).1)
}

fn open_socket(path: &Path, gid: Option<u32>) -> Result<OpenedSocket, OpenSocketError> {
    match gid {
        Some(gid) => unix::open_for(path, gid),
        None => unix::open(path),
    }
}

fn http_error(pages: HttpPages, address: SocketAddr) -> impl Fn(io::Error) -> OpenDoorError {
    let key = match pages {
        HttpPages::All => "http",
        HttpPages::Metrics => "metrics",
    };
    move |source| match source.kind() {
        io::ErrorKind::AddrInUse => {
            OpenDoorError::HttpInUse { key, address, holder: Box::new(PortHolder::find(VipAddr::new(address))) }
        }
        _ => OpenDoorError::Http { key, address, source },
    }
}

fn open_http(pages: HttpPages, address: SocketAddr) -> Result<TcpListener, OpenDoorError> {
    http::open(address).map_err(http_error(pages, address))
}

fn inherit_http(pages: HttpPages, address: SocketAddr, fd: OwnedFd) -> Result<TcpListener, OpenDoorError> {
    let listener = std::net::TcpListener::from(fd);
    let ready = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
    ready.map_err(http_error(pages, address))
}

fn serve_http(admin: &Arc<Admin>, pages: HttpPages, (listener, asked): OpenedHttp) -> Result<HttpDoor, OpenDoorError> {
    let bound = listener.local_addr().map_err(http_error(pages, asked))?;
    let spare = listener.as_fd().try_clone_to_owned().map_err(http_error(pages, asked))?;
    Ok(HttpDoor { asked, bound, pages, spare, task: Some(served_http(admin, listener, pages)) })
}

/// With a group the socket only reads.
fn serve_socket(
    admin: &Arc<Admin>,
    (listener, file): OpenedSocket,
    gid: Option<u32>,
) -> Result<SocketDoor, OpenSocketError> {
    let failed = |source| OpenSocketError::Io { path: file.path().to_owned(), source };
    let spare = listener.as_fd().try_clone_to_owned().map_err(failed)?;
    let access = if gid.is_some() { SocketAccess::Read } else { SocketAccess::All };
    Ok(SocketDoor { file, access, gid, spare, task: Some(served_socket(admin, listener, access)) })
}

fn served_http(admin: &Arc<Admin>, listener: TcpListener, pages: HttpPages) -> Tasks {
    let serve = http::serve(admin.clone(), listener, pages, HttpLimits::default());
    let tasks = Tasks::default();
    tasks.spawn("http door", serve);
    tasks
}

fn served_socket(admin: &Arc<Admin>, listener: UnixListener, access: SocketAccess) -> Tasks {
    let serve = session::serve(admin.clone(), listener, access, SessionLimits::default());
    let tasks = Tasks::default();
    tasks.spawn("admin socket", serve);
    tasks
}
