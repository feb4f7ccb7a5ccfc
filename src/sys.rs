//! System calls as safe functions: the only module that may hold `unsafe`.

pub mod clock;
pub mod eventfd;
