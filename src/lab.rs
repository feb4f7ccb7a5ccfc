//! Tools to test Baton: apiserver stand-ins and kubelet-like clients, and the two commands made of them. The tests use
//! both.
//!
//! ```text
//! demo      Baton between stand-ins and kubelets, with faults at the press of a key
//! drill     many kubelets against any address: how many nodes would have gone NotReady?
//! gameday   faults on a schedule against a real fleet, with such kubelets as judges
//! stand_in  an apiserver, as far as heartbeats and watches need one       certs, bind   certificates and free ports for it
//! kubelet   a client that behaves as a kubelet does                       lease, tls    its requests, and their encryption
//!                                                                         pause         time that may have no end
//! ```

pub(crate) mod bind;
pub mod certs;
pub mod demo;
pub(crate) mod drill;
pub(crate) mod gameday;
pub mod kubelet;
pub(crate) mod lease;
pub(crate) mod pause;
pub(crate) mod stand_in;
pub mod tls;

use std::process::ExitCode;

/// The lab's part of the command line.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum LabVerb {
    /// Shows Baton at work: three apiserver stand-ins, a few clients, and faults at the press of a key.
    Demo(demo::command::DemoArgs),
    /// Acts like many kubelets against any address, and says how many nodes would have gone NotReady.
    Drill(drill::DrillArgs),
    /// Plays faults on a schedule against a real fleet, stops if a node is silent for too long, and writes a report.
    Gameday(gameday::GamedayArgs),
    /// An apiserver stand-in, for the demo and the tests.
    #[command(hide = true)]
    StandIn(stand_in::StandInArgs),
    /// A kubelet-like client, for the demo and the tests.
    #[command(hide = true)]
    Kubelet(kubelet::command::KubeletArgs),
}

/// Runs one of the lab's commands; with `json` it prints its result as a document.
pub(crate) fn run(command: LabVerb, json: bool) -> ExitCode {
    match command {
        LabVerb::Demo(demo) => demo::command::run(demo),
        LabVerb::Drill(drill) => drill::run(&drill, json),
        LabVerb::Gameday(gameday) => gameday::run(&gameday, json),
        LabVerb::StandIn(stand_in) => stand_in::run(stand_in),
        LabVerb::Kubelet(kubelet) => kubelet::command::run(kubelet),
    }
}
