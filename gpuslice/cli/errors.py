# SPDX-License-Identifier: Apache-2.0
"""Errors that a person reads: one line with the fix, and the exit code of a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from gpuslice.cli.kinds import UnknownKindError
from gpuslice.cli.kubeconfigs import NoClusterError
from gpuslice.cli.manifests import ManifestError
from gpuslice.runtime.kube.errors import KubeError, UnavailableError


@contextmanager
def said_plainly() -> Iterator[None]:
    """Turn what a person can mend into one line on stderr and exit code 1."""
    try:
        yield
    except (ManifestError, UnknownKindError, NoClusterError) as error:
        raise click.ClickException(str(error.args[0])) from error
    except UnavailableError as error:
        raise click.ClickException(
            f"the cluster doesn't answer ({error.message}): is it still running?"
        ) from error
    except KubeError as error:
        raise click.ClickException(error.message) from error
