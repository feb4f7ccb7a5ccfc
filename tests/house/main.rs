//! Tests that read files instead of running Baton: the layout and the words of the sources, the documents' statements,
//! and tests/run.

mod circles;
mod clocks;
mod commands;
mod dependencies;
mod durations;
mod layers;
mod parts;
mod ports;
mod readme;
mod runbook;
mod seeds;
mod sources;
mod supply;
mod told;
mod visibility;
mod walls;
mod words;
