"""The faults of a stacked control plane. The first node has the VIP."""

import signal
import time
from dataclasses import dataclass
from typing import Callable

from .stacked import NODES, Balancer, Stacked

OWNER, NEXT, LAST = NODES
# Between an evacuation and the end of its host.
UNTIL_OFF_S = 1
# As a service manager or a kubelet would.
RESTARTED_AFTER_S = 0.5


@dataclass(frozen=True)
class Fault:
    key: str
    label: str
    # Whose apiservers are lost to their clients by it, whatever the balancers do.
    dead: tuple
    strike: Callable[[Stacked, Balancer], None]
    # The node that is gone.
    gone: str = None
    # Every node's firewall drops packets of connections that it has not tracked.
    firewall: bool = False


def owner_gone(scene, _):
    scene.plug(OWNER, False)


def other_gone(scene, _):
    scene.plug(LAST, False)


def apiserver(name, number):
    return lambda scene, _: scene.apiserver[name].send_signal(number)


def balancer(number):
    return lambda _, balancer: balancer.signal(OWNER, number)


def restart(_, balancer):
    balancer.signal(OWNER, signal.SIGKILL)
    time.sleep(RESTARTED_AFTER_S)
    balancer.run_on(OWNER)


def evacuate(scene, balancer):
    balancer.evacuate(OWNER)
    time.sleep(UNTIL_OFF_S)
    scene.plug(OWNER, False)


FAULTS = {it.key: it for it in (
    Fault("owner-gone", "the host that has the VIP is gone", (OWNER,), owner_gone, gone=OWNER),
    Fault("firewall", "the same, and every host's firewall drops packets of connections that it has not tracked", (OWNER,), owner_gone,
          gone=OWNER, firewall=True),
    Fault("other-gone", "another host is gone", (LAST,), other_gone, gone=LAST),
    Fault("balancer-killed", "balancer killed, and not started again", (), balancer(signal.SIGKILL)),
    Fault("balancer-restarted", "balancer killed, and started again after 0.5 s", (), restart),
    Fault("balancer-hung", "balancer hung", (), balancer(signal.SIGSTOP)),
    Fault("apiserver-killed", "apiserver killed on the host that has the VIP", (OWNER,), apiserver(OWNER, signal.SIGKILL)),
    Fault("apiserver-hung", "apiserver hung on the host that has the VIP", (OWNER,), apiserver(OWNER, signal.SIGSTOP)),
    Fault("other-hung", "apiserver hung on another host", (NEXT,), apiserver(NEXT, signal.SIGSTOP)),
    Fault("reload", "balancer reloaded", (), lambda _, balancer: balancer.reload(OWNER)),
    Fault("upgrade", "balancer upgraded", (), lambda _, balancer: balancer.upgrade(OWNER)),
    Fault("evacuate", "the host that has the VIP is emptied, then gone", (OWNER,), evacuate, gone=OWNER),
)}
