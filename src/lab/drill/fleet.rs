//! The kubelets of a drill.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustls_pki_types::ServerName;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::kubeconfig::{self, KubeContext, KubeTrust, KubeUser, KubeconfigError};
use super::leases::LeaseName;
use super::{DEFAULT_CA, DrillArgs, DrillError};
use crate::addr::VipAddr;
use crate::lab::kubelet::{Heartbeat, Kubelet, KubeletSettings, Observed, Retries, Summary};
use crate::lab::lease::WATCH_PATH;
use crate::lab::tls::{self, PemText, TlsFileError};
use crate::sys::process;

/// Time limit for removing all leases at the end.
const REMOVAL_LIMIT: Duration = Duration::from_secs(20);

/// Descriptors reserved for other uses than connections.
const SPARE_FILES: u64 = 64;

/// The kubelets so far. Dropping them ends them; [`KubeletFleet::dismiss`] also removes what they wrote.
pub(in crate::lab) struct KubeletFleet {
    settings: KubeletSettings,
    events: mpsc::UnboundedSender<Observed>,
    kubelets: Vec<Kubelet>,
    number: usize,
    server: String,
    lease: Option<LeaseName>,
}

impl KubeletFleet {
    /// None is born yet. The receiver gets what all of them report.
    pub(in crate::lab) async fn new(args: &DrillArgs) -> Result<(Self, mpsc::UnboundedReceiver<Observed>), DrillError> {
        process::raise_file_limit();
        let target = target(args)?;
        let settings = settings(args, &target).await?;
        let (events, observed) = mpsc::unbounded_channel();
        let number = args.kubelets.into();
        let kubelets = Vec::with_capacity(number);
        let fleet = Self { settings, events, kubelets, number, server: target.server, lease: args.lease.clone() };
        Ok((fleet, observed))
    }

    /// When to call [`KubeletFleet::grow`]: spread over one interval, as the nodes of a cluster are.
    pub(in crate::lab) fn births(&self) -> Interval {
        let every = (self.settings.renew_every / self.number as u32).max(Duration::from_micros(100));
        let mut births = interval(every);
        births.set_missed_tick_behavior(MissedTickBehavior::Burst);
        births
    }

    pub(in crate::lab) fn is_whole(&self) -> bool {
        self.kubelets.len() >= self.number
    }

    pub(in crate::lab) fn grow(&mut self) {
        let settings = KubeletSettings { name: self.name(self.kubelets.len() + 1), ..self.settings.clone() };
        self.kubelets.push(Kubelet::start_into(settings, self.events.clone()));
    }

    pub(in crate::lab) fn summaries(&self) -> Vec<Summary> {
        self.kubelets.iter().map(Kubelet::summary).collect()
    }

    /// HOST:PORT.
    pub(in crate::lab) fn server(&self) -> &str {
        &self.server
    }

    /// Ends all of them, and removes their leases. Returns how many leases are left.
    pub(in crate::lab) async fn dismiss(&mut self) -> usize {
        let nodes: Vec<_> = (1..=self.kubelets.len()).map(|number| self.name(number)).collect();
        // Otherwise they would create the leases again.
        self.kubelets.clear();
        let Some(LeaseName { namespace, .. }) = &self.lease else { return 0 };
        nodes.len() - Kubelet::remove_leases(&self.settings, namespace, &nodes, REMOVAL_LIMIT).await
    }

    /// The name of the kubelet with this number, counted from 1.
    fn name(&self, number: usize) -> String {
        format!("{}-{number}", self.settings.name)
    }
}

/// Where the kubelets connect, what they trust, and who they are.
#[derive(Debug)]
struct DrillTarget {
    /// HOST:PORT.
    server: String,
    server_name: String,
    /// `None`: any server.
    ca: Option<PemText>,
    own: Option<(PemText, PemText)>,
    authorization: Option<String>,
}

/// Options count before the kubeconfig.
fn target(args: &DrillArgs) -> Result<DrillTarget, DrillError> {
    let config = args.kubeconfig.as_deref().map(|path| kubeconfig::read(path, args.context.as_deref())).transpose()?;
    let server = args.server.clone().or_else(|| config.as_ref().map(|it| it.server.clone())).unwrap_or_default();
    let host = server.rsplit_once(':').map_or(server.as_str(), |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let server_name = args.server_name.clone().or_else(|| config.as_ref().and_then(|it| it.server_name.clone()));
    let (own, authorization) = credentials(args, config.as_ref())?;
    Ok(DrillTarget { server_name: server_name.unwrap_or(host), ca: trusted(args, config)?, own, authorization, server })
}

fn trusted(args: &DrillArgs, config: Option<KubeContext>) -> Result<Option<PemText>, DrillError> {
    if args.insecure {
        return Ok(None);
    }
    match (&args.ca, config.map(|it| it.trust)) {
        (Some(ca), _) => Ok(Some(PemText::read(ca)?)),
        (None, Some(KubeTrust::Anything)) => Ok(None),
        (None, Some(KubeTrust::Given(pem))) => Ok(Some(pem)),
        (None, None | Some(KubeTrust::Default)) => match PemText::read(DEFAULT_CA.as_ref()) {
            Err(TlsFileError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Err(DrillError::NoCa),
            read => Ok(Some(read?)),
        },
    }
}

/// A client certificate and its key, and the header `authorization`.
type DrillCredentials = (Option<(PemText, PemText)>, Option<String>);

fn credentials(args: &DrillArgs, config: Option<&KubeContext>) -> Result<DrillCredentials, DrillError> {
    let bearer = |token: &str| Some(format!("Bearer {}", token.trim()));
    let own = args.client_cert.as_deref().zip(args.client_key.as_deref());
    let own = own.map(|(cert, key)| Ok::<_, TlsFileError>((PemText::read(cert)?, PemText::read(key)?))).transpose()?;
    if let Some(path) = &args.token_file {
        let token = std::fs::read_to_string(path);
        let token = token.map_err(|source| DrillError::Token { path: path.clone(), source })?;
        return Ok((own, bearer(&token)));
    }
    if own.is_some() {
        return Ok((own, None));
    }
    // The heartbeat of /readyz needs no credentials.
    let needs_some = args.lease.is_some() || args.watch.is_some() || args.watches.is_some();
    match config.map(|it| &it.user) {
        None | Some(KubeUser::Nobody) => Ok((None, None)),
        Some(KubeUser::Token(token)) => Ok((None, bearer(token))),
        Some(KubeUser::Certificate { cert, key }) => Ok((Some((cert.clone(), key.clone())), None)),
        Some(KubeUser::Provider { key, by }) if needs_some => {
            let path = args.kubeconfig.clone().unwrap_or_default();
            Err(KubeconfigError::Provider { path, key: key.clone(), by }.into())
        }
        Some(KubeUser::Provider { .. }) => Ok((None, None)),
    }
}

async fn settings(args: &DrillArgs, target: &DrillTarget) -> Result<KubeletSettings, DrillError> {
    if args.every.is_zero() {
        return Err(DrillError::Every);
    }
    if !args.path.starts_with('/') || args.watch.as_ref().is_some_and(|path| !path.starts_with('/')) {
        return Err(DrillError::Path);
    }
    let limit = process::file_limit();
    if u64::from(args.kubelets) + SPARE_FILES > limit {
        return Err(DrillError::Files(args.kubelets, limit));
    }
    let server = resolve(&target.server).await?;
    let name = &target.server_name;
    let prefix = args.lease.as_ref().map_or("node", |lease| &lease.prefix);
    Ok(KubeletSettings {
        server_name: ServerName::try_from(name.clone()).map_err(|_| DrillError::ServerName { name: name.clone() })?,
        heartbeat: match &args.lease {
            Some(lease) => Heartbeat::DrillLease { namespace: lease.namespace.clone() },
            None => Heartbeat::Get(args.path.clone()),
        },
        renew_every: args.every,
        retries: Retries::KUBELET,
        request_timeout: args.timeout,
        watch: args.watch.clone().or_else(|| args.watches.map(|_| WATCH_PATH.to_owned())),
        watches: args.watches.unwrap_or(1),
        authorization: target.authorization.clone(),
        ping_after: Some(args.ping_after).filter(|after| !after.is_zero()),
        ping_timeout: args.ping_timeout,
        ..KubeletSettings::new(
            VipAddr::new(server),
            tls::client_config_of(target.ca.as_ref(), target.own.as_ref())?,
            prefix,
        )
    })
}

async fn resolve(server: &str) -> Result<SocketAddr, DrillError> {
    let found = tokio::net::lookup_host(server).await;
    let mut addresses = found.map_err(|source| DrillError::Server { server: server.to_owned(), source })?;
    addresses.next().ok_or_else(|| DrillError::NoAddress { server: server.to_owned() })
}
