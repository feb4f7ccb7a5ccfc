//! Baton in a network of its own: the fault matrix and the relay's promises, on real kernels' sockets.
//!
//! One binary, so that the laboratory is compiled and linked once.

#[path = "../lab/mod.rs"]
mod lab;

mod admission;
mod alerts;
mod boards;
mod closing;
mod demo_fleet;
mod discovery;
mod ecmp;
mod faults_backend;
mod faults_client;
mod faults_host;
mod faults_limits;
mod faults_network;
mod faults_reload;
mod fleet;
mod gameday;
mod guides;
mod init;
mod kubelets;
mod laboratory;
mod late_resets;
mod names;
mod nodes;
mod offloaded;
mod operator;
mod page;
mod preflight;
mod program;
mod readdressed;
mod recorder;
mod relaying;
mod reloads;
mod sharing;
mod storm;
mod units;
mod vip;
