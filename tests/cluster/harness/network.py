# SPDX-License-Identifier: Apache-2.0
"""Addresses inside the cluster's network namespace: the same in every cluster, no one sees them.

All nodes live in one network namespace, each with an address of its own, and every pod hangs on a
point-to-point link (CNI's `ptp`), so all traffic is routed and passes iptables. A bridge would
carry a Service's answers past them unless the kernel has br_netfilter.
"""

from __future__ import annotations

API_ADDRESS = "10.231.0.1"
API_PORT = 6443
API_SERVICE = "10.96.0.1"
SERVICE_NETWORK = "10.96.0.0/16"
POD_NETWORK = "10.232.0.0/16"
DNS_ADDRESS = "10.96.0.10"
"""Nobody answers there: the cluster has no CoreDNS."""
REGISTRY_PORT = 5000
LINK = "nodes"

SETUP = f"""\
mount -t tmpfs -o mode=755 run /run
touch /run/xtables.lock
ip link set lo up
ip link add {LINK} type bridge
ip addr add {API_ADDRESS}/24 dev {LINK}
ip link set {LINK} up
# Without a route the API server's own connections to a Service fail before iptables sees them.
ip route add {SERVICE_NETWORK} dev {LINK}
echo 1 > /proc/sys/net/ipv4/ip_forward
"""
"""Run once, by process 1 of the cluster's namespaces."""


def node_address(number: int) -> str:
    """The address of the node with this number, from 0."""
    return f"10.231.0.{11 + number}"


def pod_network(number: int) -> str:
    """Where the pods of the node with this number get their addresses."""
    return f"10.232.{number}.0/24"
