# SPDX-License-Identifier: Apache-2.0
"""The device plugin's command."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from deviceplugin.daemon import DRAIN_SECONDS, Daemon
from deviceplugin.flags import flagged, plugin_options
from deviceplugin.reloading import FileChanges, Source
from gpuslice.contract.names import NodeName
from gpuslice.runtime import logs, setting_faults, settings
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
@click.option(
    "--set", "items", multiple=True, metavar="KEY=VALUE", help="Any setting, by its dotted key."
)
def command(
    settings_path: Path | None,
    kubeconfig: Path | None,
    node_name: str,
    items: tuple[str, ...],
    **flags: str | None,
) -> None:
    """Advertise this node's GPU slices to kubelet, and keep the node's ledger."""
    try:
        overrides = setting_faults.parse_overrides(items) | flagged(flags)
        source = Source(settings_path, overrides)
        chosen = source.load()
        client = KubeClient(config.load(kubeconfig), component="device-plugin")
    except (settings.SettingsError, ConfigError) as error:
        raise click.ClickException(str(error)) from error
    logs.configure(chosen.log.level, chosen.log.format)
    status = serve(NodeName(node_name), chosen, client, source)
    if status:
        raise SystemExit(status)


command.params += plugin_options()


def serve(node: NodeName, chosen: settings.Settings, client: KubeClient, source: Source) -> int:
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
    life.on_hangup(lambda: daemon.reload(source.load()))
    changes = FileChanges(source.path, lambda: os.kill(os.getpid(), signal.SIGHUP))
    # What is there now stays: to look through it again would keep kubelet waiting.
    gc.freeze()
    daemon.start()
    status.start()
    changes.start()
    life.add("settings", changes.stop)
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
