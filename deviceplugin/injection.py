# SPDX-License-Identifier: Apache-2.0
"""What goes into a container with its tokens, as kubelet's message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from deviceplugin import allocation, cdi, environment, limits, policies
from deviceplugin.allocation import Grant
from deviceplugin.contents import Contents, InjectionError
from deviceplugin.devicefiles import DeviceFiles
from deviceplugin.inventory import Inventory
from deviceplugin.policies import Policy
from gpuslice.contract import names
from gpuslice.contract.ledger import Gpu, Ledger
from gpuslice.contract.names import GpuUuid
from protos.deviceplugin.v1beta1 import api_pb2

NOTHING_FROM_THE_RUNTIME: Final = "void"
"""NVIDIA's runtime then leaves the container to CDI."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRules:
    """What the modes go by."""

    mps_memory_limit: bool = True
    mps_thread_limit: bool = True
    hami_library: str = ""
    hami_core_limit: bool = True
    pipes_of: Callable[[GpuUuid], str] = str
    """The pipe folder of a GPU's control daemon, on the node."""
    shared_memory: str = limits.SHARED_MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """By which means a container learns of its GPUs."""

    hints: Sequence[str] = ()
    """Frameworks that are told of the share in their own variables; see `environment.hints`."""
    policies: Mapping[GpuUuid, Policy] = field(default_factory=dict)
    """Of GPUs that have one; others are shared in turns, and injected by the environment."""
    inventory: Inventory = field(default_factory=Inventory)
    files: DeviceFiles | None = None
    modes: ModeRules = ModeRules()

    def response(self, grant: Grant, ledger: Ledger) -> api_pb2.ContainerAllocateResponse:
        """Return kubelet's message for a grant of this ledger's GPUs.

        Raises:
            InjectionError: where the container can't be given what it was granted.
        """
        contents = self.contents(grant, ledger)
        return api_pb2.ContainerAllocateResponse(
            envs=contents.environment,
            mounts=[
                api_pb2.Mount(
                    host_path=each.host, container_path=each.container, read_only=each.read_only
                )
                for each in contents.mounts
            ],
            devices=[
                api_pb2.DeviceSpec(host_path=path, container_path=path, permissions="rw")
                for path in contents.devices
            ],
            cdi_devices=[api_pb2.CDIDevice(name=name) for name in contents.cdi],
        )

    def contents(self, grant: Grant, ledger: Ledger) -> Contents:
        """Return all that the container gets; InjectionError."""
        gpus = allocation.gpus_of(grant, ledger)
        policy = self._policy_of(gpus)
        told = Contents(
            environment={
                **environment.hints(grant, gpus, self.hints),
                **environment.environment(grant, gpus),
            }
        )
        return told.with_more(self._by_means(policy, gpus)).with_more(
            self._by_mode(policy, grant, gpus)
        )

    def _policy_of(self, gpus: Sequence[Gpu]) -> Policy:
        found = [self.policies.get(gpu.uuid, Policy()) for gpu in gpus]
        ways = {(policy.mode, policy.injection) for policy in found}
        if len(ways) > 1:
            raise InjectionError(
                "the share's GPUs are shared or injected in different ways: "
                + "; ".join(sorted(f"{mode} by {injection}" for mode, injection in ways))
            )
        return found[0]

    def _by_means(self, policy: Policy, gpus: Sequence[Gpu]) -> Contents:
        if policy.injection == policies.CDI:
            return Contents(
                environment={names.ENV_VISIBLE_DEVICES: NOTHING_FROM_THE_RUNTIME},
                cdi=tuple(cdi.name_of(gpu.uuid) for gpu in gpus),
            )
        if policy.injection == policies.DEVICE_NODES and self.files is not None:
            # The environment stays: NVIDIA's runtime, if it is there, brings the libraries.
            files, paths = self.files, list(self.files.control())
            for gpu in gpus:
                known = self.inventory.find(gpu.uuid)
                if known is None:
                    raise InjectionError(f"{gpu.uuid} has not been looked at yet")
                paths += files.of_gpu(known)
            return Contents(devices=tuple(dict.fromkeys(paths)))
        return Contents()

    def _by_mode(self, policy: Policy, grant: Grant, gpus: Sequence[Gpu]) -> Contents:
        if policy.mode == policies.MPS:
            return limits.mps(
                grant,
                gpus,
                pipes=self.modes.pipes_of(gpus[0].uuid),
                shared_memory=self.modes.shared_memory,
                memory_limit=self.modes.mps_memory_limit,
                thread_limit=self.modes.mps_thread_limit,
            )
        if policy.mode == policies.HAMI_CORE:
            return limits.hami_core(
                grant,
                gpus,
                library=self.modes.hami_library,
                core_limit=self.modes.hami_core_limit,
            )
        return Contents()
