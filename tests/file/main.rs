//! The configuration file: which values Baton accepts, which it refuses and with which words, and the effect of a
//! reload of each key.

mod config;
mod import;
mod init;
mod keys;
