//! What is read rather than run: the layout of the sources, their words, what the documents say, and the tests' own command.

mod circles;
mod commands;
mod dependencies;
mod layers;
mod parts;
mod ports;
mod readme;
mod sources;
mod told;
mod walls;
mod words;
