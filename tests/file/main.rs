//! The configuration file: what is taken, what is refused and in which words, and what a reload does with each key.

mod config;
mod keys;
