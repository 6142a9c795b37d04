# SPDX-License-Identifier: Apache-2.0
"""What goes into a container with its tokens, as kubelet's message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deviceplugin import allocation, environment
from deviceplugin.allocation import Grant
from gpuslice.contract.ledger import Ledger
from protos.deviceplugin.v1beta1 import api_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """By which means a container learns of its GPUs."""

    hints: Sequence[str] = ()
    """Frameworks that are told of the share in their own variables; see `environment.hints`."""

    def response(self, grant: Grant, ledger: Ledger) -> api_pb2.ContainerAllocateResponse:
        """Return kubelet's message for a grant of this ledger's GPUs."""
        gpus = allocation.gpus_of(grant, ledger)
        return api_pb2.ContainerAllocateResponse(
            envs={
                **environment.hints(grant, gpus, self.hints),
                **environment.environment(grant, gpus),
            }
        )
