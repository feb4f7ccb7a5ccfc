//! One host of a lab: a namespace with an interface on the bridge.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::client::Conn;
use super::namespace::{Namespace, NoNamespace, feed};
use super::process::Process;
use super::server::{Behaviour, Server};
use super::wait::patient;

/// A handle; clones mean the same host.
#[derive(Clone, Debug)]
pub struct Host {
    pub name: &'static str,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
    namespace: Arc<Namespace>,
    switch: Arc<Namespace>,
}

impl Host {
    /// Makes a host and plugs it into the switch. `number` becomes the last part of its addresses.
    pub fn new(lab: u32, switch: &Arc<Namespace>, name: &'static str, number: u8) -> Result<Self, NoNamespace> {
        let namespace = Arc::new(Namespace::new(lab, name)?);
        let v4 = Ipv4Addr::new(10, 77, 0, number);
        let v6 = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, u16::from(number));
        switch.ip(&format!(
            "link add {name} type veth peer name eth0 netns {}\n\
             link set {name} master br0 up\n",
            namespace.name()
        ));
        let host = Self { name, v4, v6, namespace, switch: switch.clone() };
        // The same everywhere, whatever the machine's default is.
        host.sysctl("net/ipv4/tcp_congestion_control", "reno");
        if name == "client" {
            // Tests that use a client's port again choose from these: the kernel must not, or the port is in use for a minute.
            host.sysctl("net/ipv4/ip_local_reserved_ports", "41000-41099");
        }
        host.sysctl("net/ipv6/conf/eth0/accept_dad", "0");
        host.namespace.ip(&format!(
            "link set eth0 up\n\
             address add {v4}/24 dev eth0\n\
             address add {v6}/64 dev eth0 nodad\n"
        ));
        Ok(host)
    }

    pub fn v4(&self, port: u16) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(self.v4), port)
    }

    pub fn v6(&self, port: u16) -> SocketAddr {
        SocketAddr::new(IpAddr::V6(self.v6), port)
    }

    /// The name of its namespace, for ip(8).
    pub fn namespace(&self) -> &str {
        self.namespace.name()
    }

    /// Runs `work` on a thread in this host's namespace and waits for it.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let entered = scope.spawn(|| {
                self.namespace.enter();
                work()
            });
            entered.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs a shell command here and returns what it printed; panics with its output if it fails.
    #[track_caller]
    pub fn run(&self, command: &str) -> String {
        self.enter(|| feed(Command::new("sh").args(["-euc", command]), ""))
    }

    /// Starts a process here; it is killed when dropped, and when this process dies.
    #[track_caller]
    pub fn spawn(&self, command: &[&str], log: &std::path::Path) -> Process {
        Process::spawn(&self.namespace, command, log)
    }

    /// Serves TCP on `address` in the way of `behaviour`.
    #[track_caller]
    pub fn serve_on(&self, address: SocketAddr, behaviour: Behaviour) -> Server {
        Server::start(Some(&self.namespace), address, behaviour)
    }

    /// Serves TCP on port 6443 of the IPv4 address.
    #[track_caller]
    pub fn serve(&self, behaviour: Behaviour) -> Server {
        self.serve_on(self.v4(6443), behaviour)
    }

    /// Connects from here.
    pub fn try_connect(&self, to: SocketAddr, timeout: Duration) -> io::Result<Conn> {
        self.enter(|| TcpStream::connect_timeout(&to, timeout)).map(Conn::new)
    }

    /// Connects from here; panics if that fails.
    #[track_caller]
    pub fn connect(&self, to: SocketAddr) -> Conn {
        self.try_connect(to, patient(super::LONG)).unwrap_or_else(|error| panic!("{} to {to}: {error}", self.name))
    }

    /// Connects from `source`, an address of this host.
    pub fn connect_from(&self, source: IpAddr, to: SocketAddr) -> io::Result<Conn> {
        self.connect_by(SocketAddr::new(source, 0), to, patient(super::LONG))
    }

    /// Connects from `source`, whose port may have been that of another connection before.
    pub fn connect_by(&self, source: SocketAddr, to: SocketAddr, timeout: Duration) -> io::Result<Conn> {
        self.enter(|| {
            let socket = socket2::Socket::new(socket2::Domain::for_address(to), socket2::Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket.bind(&source.into())?;
            socket.connect_timeout(&to.into(), timeout)?;
            Ok(Conn::new(socket.into()))
        })
    }

    /// Pulls the plug: frames are lost both ways and nobody is told.
    pub fn link_down(&self) {
        self.switch.ip(&format!("link set {} down\n", self.name));
    }

    pub fn link_up(&self) {
        self.switch.ip(&format!("link set {} up\n", self.name));
    }

    /// Keeps it from hearing other hosts that are kept so too, and them from hearing it; all others are as before.
    pub fn isolate(&self, on: bool) {
        let word = if on { "on" } else { "off" };
        self.switch.ip(&format!("link set {} type bridge_slave isolated {word}\n", self.name));
    }

    /// Drops every frame that `from` sends to this host, also those to all hosts; what this host sends passes. Not for two pairs at once.
    pub fn deafen(&self, from: &Host, on: bool) {
        let rule = format!("iifname {} oifname {} drop", from.name, self.name);
        let table = match on {
            true => {
                format!("table bridge lab {{\nchain forward {{\ntype filter hook forward priority 0;\n{rule}\n}}\n}}\n")
            }
            false => "delete table bridge lab\n".to_owned(),
        };
        feed(Command::new("ip").args(["netns", "exec", self.switch.name(), "nft", "-f", "-"]), &table);
    }

    /// The Ethernet address of its interface.
    pub fn mac(&self) -> String {
        let link = self.run("ip -o link show eth0");
        let mac = link.split_whitespace().skip_while(|word| *word != "link/ether").nth(1);
        mac.expect("an Ethernet address").to_owned()
    }

    /// The Ethernet address that it has learnt for `address`.
    pub fn neighbour(&self, address: IpAddr) -> Option<String> {
        let entry = self.run(&format!("ip neigh show {address} dev eth0"));
        Some(entry.split_whitespace().skip_while(|word| *word != "lladdr").nth(1)?.to_owned())
    }

    /// Takes the interface away and makes it anew, with the same name, Ethernet address and addresses, as a driver's reset does.
    pub fn make_link_anew(&self) {
        let mac = self.mac();
        self.namespace.ip("link del eth0\n");
        self.switch.ip(&format!(
            "link add {0} type veth peer name eth0 address {mac} netns {1}\nlink set {0} master br0 up\n",
            self.name,
            self.namespace.name()
        ));
        self.sysctl("net/ipv6/conf/eth0/accept_dad", "0");
        self.namespace.ip(&format!(
            "link set eth0 up\naddress add {}/24 dev eth0\naddress add {}/64 dev eth0 nodad\n",
            self.v4, self.v6
        ));
    }

    /// Plugs one more interface called `interface` into the switch, without an address.
    pub fn second_link(&self, interface: &str) {
        let far = format!("{}-{interface}", self.name);
        let far = &far[..far.len().min(15)];
        self.switch.ip(&format!(
            "link add {far} type veth peer name {interface} netns {}\nlink set {far} master br0 up\n",
            self.namespace.name()
        ));
        self.namespace.ip(&format!("link set {interface} up\n"));
    }

    /// One more address on this host's interface.
    pub fn add_address(&self, address: IpAddr) {
        let (bits, extra) = if address.is_ipv4() { (24, "") } else { (64, "nodad") };
        self.namespace.ip(&format!("address add {address}/{bits} dev eth0 {extra}\n"));
    }

    /// Loads rules of nft(8).
    #[track_caller]
    pub fn nft(&self, rules: &str) {
        self.enter(|| feed(Command::new("nft").args(["-f", "-"]), rules));
    }

    /// Drops what nft `matches` describes, in the hook `input` or `output`, until [`Host::nft_clear`].
    #[track_caller]
    pub fn drop_packets(&self, hook: &str, matches: &str) {
        self.filter(hook, &format!("{matches} drop"));
    }

    /// Adds a rule of nft to the hook `input` or `output`, until [`Host::nft_clear`].
    #[track_caller]
    pub fn filter(&self, hook: &str, rule: &str) {
        self.nft(&format!("table inet lab {{\nchain {hook} {{\ntype filter hook {hook} priority 0;\n{rule}\n}}\n}}\n"));
    }

    /// Forgets every rule.
    pub fn nft_clear(&self) {
        self.nft("flush ruleset\n");
    }

    /// Sets a kernel parameter, by its path below /proc/sys.
    #[track_caller]
    pub fn sysctl(&self, path: &str, value: &str) {
        self.enter(|| std::fs::write(format!("/proc/sys/{path}"), value))
            .unwrap_or_else(|error| panic!("{path} = {value}: {error}"));
    }

    /// Limits what this host sends, by a token bucket.
    pub fn slow_link(&self, rate: &str) {
        self.run(&format!("tc qdisc replace dev eth0 root tbf rate {rate} burst 32kbit latency 100ms"));
    }

    /// The same for what comes to this host.
    pub fn slow_inbound(&self, rate: &str) {
        let command = format!(
            "ip netns exec {} tc qdisc replace dev {} root tbf rate {rate} burst 32kbit latency 100ms",
            self.switch.name(),
            self.name
        );
        self.run(&command);
    }

    /// TCP sockets here that somebody has or had and that are not past their end, so without LISTEN, SYN_RECV,
    /// TIME_WAIT and FIN_WAIT2: local address, remote address, state.
    pub fn tcp_sockets(&self) -> Vec<String> {
        const PAST: [&str; 4] = ["0A", "03", "06", "05"];
        let rows = self.tcp_table().into_iter().filter(|row| !PAST.contains(&row[2].as_str()));
        rows.map(|row| row[..3].join(" ")).collect()
    }

    /// Bytes that the kernel holds in the send and in the receive queues of all of them.
    pub fn tcp_queued(&self) -> (u64, u64) {
        let rows = self.tcp_table().into_iter().filter(|row| row[2] != "0A");
        let queues = rows.map(|row| {
            let (send, receive) = row[3].split_once(':').expect("two queues");
            let bytes = |hex| u64::from_str_radix(hex, 16).expect("hexadecimal");
            (bytes(send), bytes(receive))
        });
        queues.fold((0, 0), |sum, queue| (sum.0 + queue.0, sum.1 + queue.1))
    }

    /// Whether `address` is on its interface to the others, as a VIP is that keepalived gave it; `lo` does not count.
    pub fn has_address(&self, address: &str) -> bool {
        !self.run(&format!("ip -o address show dev eth0 to {address}")).is_empty()
    }

    /// Whether `address` is on `lo`, as Baton keeps a VIP whose flows have not ended.
    pub fn has_on_lo(&self, address: &str) -> bool {
        !self.run(&format!("ip -o address show dev lo to {address}")).is_empty()
    }

    /// A counter of its kernel: `name` of `group` (`Tcp:`) in `file` of /proc/net (`snmp`, `netstat`).
    #[track_caller]
    pub fn counter(&self, file: &str, group: &str, name: &str) -> u64 {
        let text = self.run(&format!("cat /proc/net/{file}"));
        let mut lines = text.lines().filter(|line| line.starts_with(group));
        let names = lines.next().expect("a line of names").split_whitespace();
        let values = lines.next().expect("a line of values").split_whitespace();
        let found = names.zip(values).find(|(found, _)| *found == name);
        found.and_then(|(_, value)| value.parse().ok()).unwrap_or_else(|| panic!("{file} has no {name}"))
    }

    /// proc(5) `/proc/net/tcp` and `tcp6`: local address, remote address, state, queues.
    fn tcp_table(&self) -> Vec<Vec<String>> {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
        let listed = self.enter(|| [read("tcp"), read("tcp6")]);
        let rows = listed.iter().flat_map(|table| table.lines().skip(1));
        rows.map(|row| row.split_whitespace().skip(1).take(4).map(str::to_owned).collect()).collect()
    }
}
