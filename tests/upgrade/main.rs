//! Upgrades of the real process under real flows, also with failures of either process.

mod backend;
mod crowd;
mod faults;
mod flows;
mod frames;
mod instance;
mod kinds;
mod limits;
mod part;
mod paused;
mod previous;
mod refusals;
mod relay;
mod scene;
mod service;
mod signals;
mod state;
