//! Why a flow ended: a closed set that every exit path must choose from.
//!
//! A byte count does not show whether a flow ended with a close or a reset, nor by which side. So the relay never
//! merges these: each reason says who ended the flow and what the client saw.

use serde::{Deserialize, Serialize};

macro_rules! end_reasons {
    ($($variant:ident $label:literal $by:ident $seen:ident $about:literal;)*) => {
        /// Why a flow ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum EndReason {
            $(#[doc = $about] $variant,)*
        }

        impl EndReason {
            /// Every reason, in the order of the table in docs/end-reasons.md.
            pub const ALL: &'static [EndReason] = &[$(EndReason::$variant,)*];

            /// The name in logs, events, JSON and the `reason` label of metrics.
            pub fn label(self) -> &'static str {
                match self { $(EndReason::$variant => $label,)* }
            }

            /// Who ended the flow.
            pub fn by(self) -> EndedBy {
                match self { $(EndReason::$variant => EndedBy::$by,)* }
            }

            /// What the client's kernel saw.
            pub fn client_saw(self) -> ClientSaw {
                match self { $(EndReason::$variant => ClientSaw::$seen,)* }
            }

            /// One sentence for people.
            pub fn about(self) -> &'static str {
                match self { $(EndReason::$variant => $about,)* }
            }
        }
    };
}

/// Who ended a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    Client,
    Backend,
    Baton,
    Operator,
}

impl EndedBy {
    pub fn label(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Backend => "backend",
            Self::Baton => "baton",
            Self::Operator => "operator",
        }
    }
}

/// What a client's kernel saw at the end of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientSaw {
    Fin,
    Rst,
    /// The client has ended the flow itself, or is gone.
    Nothing,
}

end_reasons! {
    ClientClosed "client_closed" Client Fin "The client sent FIN first, then the backend; all bytes were delivered.";
    BackendClosed "backend_closed" Backend Fin "The backend sent FIN first, then the client; all bytes were delivered.";
    ClientReset "client_reset" Client Nothing "The client sent RST; Baton passed it on to the backend.";
    BackendReset "backend_reset" Backend Rst "The backend sent RST; Baton passed it on to the client.";
    ClientTimedOut "client_timed_out" Client Nothing "The client's host stopped answering: keepalive or user_timeout ran out.";
    BackendTimedOut "backend_timed_out" Backend Rst "The backend's host stopped answering: keepalive or user_timeout ran out.";
    ClientLeft "client_left" Client Nothing "The client went away before any backend was connected.";
    ConnectFailed "connect_failed" Backend Rst "Every backend that Baton tried refused or was unreachable.";
    ConnectTimedOut "connect_timed_out" Backend Rst "No backend that Baton tried answered within connect_timeout.";
    NoBackend "no_backend" Baton Rst "Every backend is ejected or has no address.";
    BackendsFull "backends_full" Baton Rst "Every usable backend is at its max_connections, or the first one that returned has enough for now.";
    BackendEjected "backend_ejected" Baton Rst "Baton found its backend dead.";
    DrainDeadline "drain_deadline" Baton Rst "Its backend was draining and drain_timeout passed.";
    IdleTimeout "idle_timeout" Baton Rst "No byte moved for idle_timeout.";
    Rebalanced "rebalanced" Baton Fin "It was quiet, and rebalancing ended it so that the client connects to a \
                                       backend with fewer flows; an offloaded flow, without a socket that could send FIN, gets RST.";
    Shutdown "shutdown" Baton Rst "Baton stopped and stop_timeout passed.";
    Killed "killed" Operator Rst "An operator killed it.";
    EjectedByOperator "ejected_by_operator" Operator Rst "An operator ejected its backend.";
    LimitTotal "limit_total" Baton Rst "max_connections of the process was reached.";
    LimitFrontend "limit_frontend" Baton Rst "max_connections of the frontend was reached.";
    LimitSource "limit_source" Baton Rst "max_connections_per_source was reached.";
    RateSource "rate_source" Baton Rst "accept_rate_per_source was reached.";
    Denied "denied" Baton Rst "The source is not in allow, or is in deny.";
    OutOfFiles "out_of_files" Baton Rst "No file descriptor was left for it.";
    OutOfPorts "out_of_ports" Baton Rst "No local port was left towards any usable backend.";
    BadProxyHeader "bad_proxy_header" Client Rst "The PROXY protocol header was malformed or did not come in time.";
    FrontendRemoved "frontend_removed" Operator Rst "A reload removed its frontend and drain_timeout passed.";
    NotUpgraded "not_upgraded" Baton Rst "An upgrade could not move it, and the old process has exited.";
    Internal "internal" Baton Rst "A system call failed in a way that Baton does not expect; the log has the error.";
    Moved "moved" Baton Nothing "Another instance owns it from now on; it goes on.";
    EvacuationDeadline "evacuation_deadline" Baton Rst "An operator evacuated its host, and it was still proxied at \
                                                        the deadline, or came after it, or the VIP's new owner cannot forward its packets.";
    BackendHasVip "backend_has_vip" Baton Rst "The VIP is on the host of its backend, which takes no packets from that address.";
    ClientHasVip "client_has_vip" Baton Rst "The VIP left the client's host, which keeps it on lo and takes no packets from that address.";
    Ipsec "ipsec" Baton Rst "An IPsec policy covers one of its legs since it was offloaded.";
    PeerHasVip "peer_has_vip" Baton Rst "The VIP is on the host of a peer, to which its backend, on this host, sends its answers.";
    Oversized "oversized" Baton Rst "A packet was too large for the interface to its receiver, whose MTU has changed since the flow was offloaded.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_unique_and_match_their_json_form() {
        let mut labels: Vec<_> = EndReason::ALL.iter().map(|reason| reason.label()).collect();
        for reason in EndReason::ALL {
            assert_eq!(serde_json::to_string(reason).unwrap(), format!("\"{}\"", reason.label()));
        }
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), EndReason::ALL.len());
    }

    #[test]
    fn the_discriminant_is_the_place_in_all() {
        for (place, reason) in EndReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, place);
        }
    }
}
