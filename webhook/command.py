# SPDX-License-Identifier: Apache-2.0
"""The webhook's command line."""

from __future__ import annotations

import functools
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from gpuslice.runtime import logs, setting_faults, settings
from gpuslice.runtime.kube import config
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import KubeError
from gpuslice.runtime.kube.events import EventRecorder
from gpuslice.runtime.kube.resources import SERVICES
from gpuslice.runtime.settings import Settings, SettingsError
from webhook import certs, keeping, server, trust
from webhook.certs import CertificateError
from webhook.keeping import CertificateKeeper, GivenCertificate, OwnCertificate
from webhook.server import Leash, Listener, Wsgi
from webhook.trust import SecretPlace, TrustError
from webhook.worker import Worker

log = logs.get(__name__)

COMPONENT: Final = "webhook"
REPORTER: Final = "gpuslice.dev/webhook"
FAULT: Final = 1
USAGE: Final = 2


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--settings",
    "settings_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The settings, as YAML; without it all have their defaults.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="How to reach the cluster; without it the pod's own account, or $KUBECONFIG.",
)
@click.option("--host", help="Where to listen (setting webhook.host).")
@click.option("--port", type=int, help="Where to listen; 0 takes a free one (webhook.port).")
@click.option("--metrics-port", type=int, help="For probes and metrics (webhook.metricsPort).")
@click.option(
    "--cert-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Has tls.crt and tls.key (mode files), or is where they are written (mode self).",
)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="One setting.")
def webhook(
    *,
    settings_file: Path | None,
    kubeconfig: Path | None,
    host: str | None,
    port: int | None,
    metrics_port: int | None,
    cert_dir: Path | None,
    sets: tuple[str, ...],
) -> int:
    """Serve admission and placement."""
    overrides: dict[str, Any] = dict(setting_faults.parse_overrides(list(sets)))
    given: Mapping[str, Any] = {
        "webhook.host": host,
        "webhook.port": port,
        "webhook.metricsPort": metrics_port,
        "webhook.certificateDir": None if cert_dir is None else str(cert_dir),
    }
    overrides |= {key: value for key, value in given.items() if value is not None}
    chosen = settings.load(settings_file, overrides)
    logs.configure(chosen.log.level, chosen.log.format)
    with tempfile.TemporaryDirectory(prefix="gpuslice-webhook-") as scratch:
        own_folder = cert_dir or Path(scratch)
        return run(chosen, kubeconfig, own_folder)


def run(chosen: Settings, kubeconfig: Path | None, own_folder: Path) -> int:
    """Serve until a signal, and return the exit code.

    Args:
        chosen: the settings.
        kubeconfig: how to reach the cluster, None for the usual places.
        own_folder: where a certificate of our own is written.
    """
    cluster = config.load(kubeconfig)
    about = chosen.webhook
    place = SecretPlace(
        namespace=about.namespace or cluster.namespace,
        name=about.secret_name,
        service=about.service_name,
    )
    is_own = about.certificate_mode == "self"
    folder = own_folder if is_own else Path(about.certificate_dir)
    if is_own:
        client = KubeClient(cluster, component=COMPONENT)
        folder.mkdir(parents=True, exist_ok=True)
        pair = trust.ensure_pair(client, place, keeping.now())
        trust.write_files(folder, pair.leaf)
        client.close()  # the worker, a fork of this process, makes its own
    leaf = trust.read_files(folder)
    expires = certs.check(leaf, keeping.now())

    port = about.port or server.free_port(about.host)

    def load(leash: Leash) -> Wsgi:
        client = KubeClient(cluster, component=COMPONENT)
        worker = Worker(
            chosen,
            client,
            draining=leash.draining,
            served=functools.partial(server.serves, about.host, port),
        )
        worker.certificate_expires(expires)
        worker.start()
        certificate = (
            OwnCertificate(client, place, folder)
            if is_own
            else GivenCertificate(folder, served=trust.read_files(folder))
        )
        events = EventRecorder(client, component=REPORTER, instance=socket.gethostname()).start()
        # Where a person looks who can't reach the webhook.
        service = {"metadata": {"name": place.service, "namespace": place.namespace}}
        CertificateKeeper(
            certificate,
            tell=worker.certificate_expires,
            serve_anew=server.ask_for_new_worker,
            report=functools.partial(events.record, SERVICES, service),
        ).start()
        return worker.app

    log.info("serving", url=f"https://{about.host}:{port}", certificate=about.certificate_mode)
    listener = Listener(
        host=about.host,
        port=port,
        certificate=folder / trust.CERTIFICATE_FILE,
        key=folder / trust.KEY_FILE,
        drain_seconds=about.drain_seconds,
    )
    return server.serve(listener, load)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        result = webhook.main(args=arguments, prog_name="gpuslice webhook", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except SettingsError as error:
        click.echo(f"settings: {error}", err=True)
        return USAGE
    except (KubeError, TrustError, CertificateError) as error:
        click.echo(f"gpuslice webhook: {error}", err=True)
        return FAULT
    return result if isinstance(result, int) else 0
