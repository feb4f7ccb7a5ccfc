//! System calls as safe functions: the only module that may hold `unsafe`.

pub mod arp;
pub mod bpf;
pub(crate) mod bpffs;
pub mod clock;
pub mod epoll;
pub(crate) mod eventfd;
pub mod fd_passing;
pub mod frame;
pub mod inherited;
mod int_option;
pub(crate) mod kill_timer;
pub mod liveness;
pub mod ndisc;
pub mod netdev;
pub(crate) mod netlink;
pub(crate) mod pipe;
pub(crate) mod port_holder;
pub mod process;
pub(crate) mod random;
pub mod raw;
pub mod sequence;
pub mod silence;
pub(crate) mod sock_diag;
pub mod socket;
pub(crate) mod source;
pub(crate) mod tcp_info;
pub(crate) mod text;
