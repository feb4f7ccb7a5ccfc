//! System calls as safe functions: the only module that may hold `unsafe`.

pub mod arp;
pub mod bpf;
pub mod bpffs;
pub mod clock;
pub mod epoll;
pub mod eventfd;
pub mod fd_passing;
pub mod frame;
pub mod inherited;
pub mod ndisc;
pub mod netdev;
pub mod netlink;
pub mod pipe;
pub mod port_holder;
pub mod process;
pub mod random;
pub mod raw;
pub mod sequence;
pub mod silence;
pub mod sock_diag;
pub mod socket;
pub mod source;
pub mod tcp_info;
