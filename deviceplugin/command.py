# SPDX-License-Identifier: Apache-2.0
"""The device plugin's command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from deviceplugin.daemon import DRAIN_SECONDS, Daemon
from gpuslice.contract.names import NodeName
from gpuslice.runtime import logs, settings
from gpuslice.runtime.kube import config
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import ConfigError
from gpuslice.runtime.lifecycle import Lifecycle
from gpuslice.runtime.metrics import Metrics
from gpuslice.runtime.status_server import StatusServer

log = logs.get(__name__)


@click.command(name="device-plugin", context_settings={"show_default": True})
@click.option(
    "--settings", "settings_path", type=click.Path(path_type=Path), help="The settings' YAML file."
)
@click.option(
    "--kubeconfig", type=click.Path(path_type=Path), help="Default: the pod's own service account."
)
@click.option(
    "--node-name", envvar="NODE_NAME", required=True, help="This node; default: $NODE_NAME."
)
@click.option("--driver-root", help="Setting devicePlugin.driverRoot.")
@click.option("--plugin-dir", help="Setting devicePlugin.pluginDir: the folder of kubelet.sock.")
@click.option("--kubelet-root", help="Setting devicePlugin.kubeletRoot.")
@click.option("--metrics-port", type=int, help="Setting devicePlugin.metricsPort; 0: any free one.")
def command(
    settings_path: Path | None,
    kubeconfig: Path | None,
    node_name: str,
    **flags: str | int | None,
) -> None:
    """Advertise this node's GPU slices to kubelet, and keep the node's ledger."""
    overrides = {
        f"devicePlugin.{_camel(flag)}": value for flag, value in flags.items() if value is not None
    }
    try:
        chosen = settings.load(settings_path, overrides)
        client = KubeClient(config.load(kubeconfig), component="device-plugin")
    except (settings.SettingsError, ConfigError) as error:
        raise click.ClickException(str(error)) from error
    logs.configure(chosen.log.level, chosen.log.format)
    status = serve(NodeName(node_name), chosen, client)
    if status:
        raise SystemExit(status)


def _camel(flag: str) -> str:
    first, *others = flag.split("_")
    return first + "".join(map(str.capitalize, others))


def serve(node: NodeName, chosen: settings.Settings, client: KubeClient) -> int:
    """Run until a signal; return the exit status."""
    metrics = Metrics("device-plugin")
    daemon = Daemon(node, chosen, client, metrics)
    life = Lifecycle()
    daemon.on_outdated = lambda: life.ask_to_stop("the driver was replaced")
    life.catch_signals()
    port = chosen.device_plugin.metrics_port
    try:
        status = StatusServer(
            metrics.registry, ready=daemon.ready, healthy=daemon.healthy, port=port
        )
    except OSError as error:
        raise click.ClickException(
            f"can't listen on port {port} for metrics and probes: {error.strerror}; "
            "choose another one with the setting devicePlugin.metricsPort"
        ) from error
    daemon.start()
    status.start()
    life.add("status", status.stop)
    life.add("device plugin", daemon.stop, deadline_seconds=DRAIN_SECONDS + 5)
    log.info("started", node=node, metrics_port=status.port)
    return life.run()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    try:
        command.main(args=list(argv) if argv is not None else None, standalone_mode=False)
    except click.ClickException as error:
        error.show(sys.stderr)
        return error.exit_code
    except SystemExit as stopped:
        return int(stopped.code or 0)
    except click.Abort:
        return 130
    return 0
