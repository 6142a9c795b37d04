# SPDX-License-Identifier: Apache-2.0
"""What a node's containerd, CNI and kubelet are told, and how its file system is prepared.

The rule: stock settings, except what this file says with its reason. Inside a node's mount
namespace everything lies where it does on a real node.
"""

from __future__ import annotations

import json
from pathlib import Path

from . import network

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
DRIVER_ROOT = "/run/nvidia/driver"
"""Where the GPU operator puts the driver, and our DaemonSet's hostPath looks."""

SHIELDED_SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""kubelet sets these, and they are the machine's: in a node they are plain files.

Source: pkg/kubelet/cm/container_manager_linux.go, setupKernelTunables.
"""


def boot_script(*, name: str, disk: Path, driver_root: Path, device_count: int) -> str:
    """What a node's process 1 does before anything else runs there.

    Args:
        name: the node's host name.
        disk: the folder with what a reboot keeps; /run, /dev and the boot id are new each time.
        driver_root: the folder with the GPU driver's library.
        device_count: how many /dev/nvidiaN there are.
    """
    shields = "\n".join(
        f"mkdir -p /run/sysctl/{Path(item).parent}\n"
        f"cat /proc/sys/{item} > /run/sysctl/{item}\n"
        f"mount --bind /run/sysctl/{item} /proc/sys/{item}"
        for item in SHIELDED_SYSCTLS
    )
    devices = "\n".join(
        f"mknod -m 666 /dev/nvidia{minor} c 195 {number}"
        for minor, number in (
            *((str(index), index) for index in range(device_count)),
            ("ctl", 255),
        )
    )
    return f"""\
hostname {name}
exec 9>>/run/xtables.lock
mount -t tmpfs -o mode=755 run /run
# All nodes share one network namespace, and so must share the lock of its iptables.
touch /run/xtables.lock
mount --bind /proc/self/fd/9 /run/xtables.lock
exec 9>&-

cd {disk}
mkdir -p lib log etc etc-work
mount --bind lib /var/lib
mount --bind log /var/log
mount -t overlay -o lowerdir=/etc,upperdir=etc,workdir=etc-work etc /etc
mkdir -p /var/lib/kubelet /var/log/pods /etc/cdi /run/cdi {DRIVER_ROOT}
mount --bind {driver_root} {DRIVER_ROOT}

# kubelet tells a reboot by the boot id.
cat /proc/sys/kernel/random/uuid > /run/boot_id
mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
{shields}

# A /dev of its own, for its GPUs' device files.
mkdir /run/dev
mount --rbind /dev /run/dev
mount -t tmpfs -o mode=755 dev /dev
find /run/dev -mindepth 1 -maxdepth 1 ! -type d -exec cp -a -t /dev '{{}}' +
for shared in pts shm mqueue; do
    if [ -d /run/dev/$shared ]; then
        mkdir /dev/$shared
        mount --rbind /run/dev/$shared /dev/$shared
    fi
done
{devices}
cd /
mount --make-rshared /
"""


def containerd_toml() -> str:
    return """\
version = 3

[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = true
  # Below -999 only the machine's real root may go.
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['/usr/lib/cni']
  conf_dir = '/etc/cni/net.d'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = 'registry.k8s.io/pause:3.10'
[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = '/etc/containerd/certs.d'
# Its default is /opt/containerd, outside of what the node keeps to itself.
[plugins.'io.containerd.internal.v1.opt']
  path = '/var/lib/containerd/opt'
"""


def registry_hosts() -> str:
    """Every registry in the world is ours: image names need no change, and nothing goes out."""
    return f"""\
[host."http://127.0.0.1:{network.REGISTRY_PORT}"]
  capabilities = ["pull", "resolve"]
"""


def cni_conflist(number: int) -> str:
    return json.dumps(
        {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "ptp",
                    "ipMasq": False,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": "/run/cni-addresses",
                        "ranges": [[{"subnet": network.pod_network(number)}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        },
        indent=1,
    )


def kubelet_config(
    *, address: str, cgroup: str, client_ca: Path, certificate: Path, key: Path
) -> str:
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(client_ca)},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",  # there may be no systemd
            "cgroupRoot": cgroup,  # several nodes share the machine's hierarchies
            "clusterDNS": [network.DNS_ADDRESS],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            # The machine may be small, and busy with other things; and its disk is all nodes'.
            "enforceNodeAllocatable": [],
            "evictionHard": {
                "memory.available": "0%",
                "nodefs.available": "0%",
                "imagefs.available": "0%",
                "nodefs.inodesFree": "0%",
            },
            "imageGCHighThresholdPercent": 100,
            "failCgroupV1": False,  # true by default since 1.35, and CI machines have both
            "failSwapOn": False,
            "healthzPort": 0,  # it would listen on the loopback that all nodes share
            "tlsCertFile": str(certificate),
            "tlsPrivateKeyFile": str(key),
        },
        indent=1,
    )
