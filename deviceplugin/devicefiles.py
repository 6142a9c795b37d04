# SPDX-License-Identifier: Apache-2.0
"""The files by which programs reach GPUs: under /dev, and the driver's libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from deviceplugin.contents import InjectionError, Mount
from deviceplugin.driver import DriverError, find_library
from deviceplugin.inventory import Gpu

CONTROL: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
"""Every CUDA program needs the first two; the others are given where there are any."""
_LIBRARIES: Final = (
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-gpucomp.so.*",
)
"""What a CUDA program needs of the driver; its own libraries come in its image."""
_ON_THE_NODE: Final = Path("/dev")


class DeviceFiles:
    """One node's files, by their paths on the node."""

    def __init__(
        self, *, dev_root: Path, proc_root: Path, driver_root: Path, host_driver_root: Path
    ) -> None:
        """Look under roots as this process sees them; `host_driver_root` is the node's own path."""
        self._dev = dev_root
        self._capabilities = proc_root / "driver" / "nvidia" / "capabilities"
        self._driver_root = driver_root
        self._host_driver_root = host_driver_root

    def control(self) -> tuple[str, ...]:
        """Return what every container with a GPU needs."""
        return tuple(str(_ON_THE_NODE / name) for name in CONTROL if (self._dev / name).exists())

    def of_gpu(self, gpu: Gpu) -> tuple[str, ...]:
        """Return the files of one GPU or MIG instance.

        Raises:
            InjectionError: where its driver doesn't tell.
        """
        if gpu.minor_number is None:
            raise InjectionError(
                f"{gpu.uuid}: the driver doesn't tell its device file: set "
                "devicePlugin.deviceInjection to environment"
            )
        own = (str(_ON_THE_NODE / f"nvidia{gpu.minor_number}"),)
        return own if gpu.mig_parent is None else (*own, *self._of_instance(gpu))

    def _of_instance(self, gpu: Gpu) -> tuple[str, ...]:
        """Return the files that open a MIG instance.

        Source: NVIDIA's MIG user guide, "Device nodes and capabilities".
        """
        instance = self._capabilities / f"gpu{gpu.minor_number}" / "mig" / f"gi{gpu.gpu_instance}"
        accesses = (instance / "access", instance / f"ci{gpu.compute_instance}" / "access")
        return tuple(
            str(_ON_THE_NODE / "nvidia-caps" / self._capability(each)) for each in accesses
        )

    def _capability(self, access: Path) -> str:
        try:
            text = access.read_text(encoding="ascii")
        except (OSError, ValueError) as err:
            raise InjectionError(f"{access} can't be read: {err}") from err
        for line in text.splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "DeviceFileMinor" and value.strip().isdigit():
                return f"nvidia-cap{value.strip()}"
        raise InjectionError(f"{access} has no line such as `DeviceFileMinor: 3`")

    def libraries(self) -> tuple[Mount, ...]:
        """Return the driver's libraries, in a container where they are on the node."""
        try:
            folder = find_library(self._driver_root).parent
        except DriverError:
            return ()
        if not folder.is_absolute():
            return ()
        inside = Path("/") / folder.relative_to(self._driver_root)
        return tuple(
            Mount(
                host=str(self._host_driver_root / inside.relative_to("/") / found.name),
                container=str(inside / found.name),
            )
            for pattern in _LIBRARIES
            for found in sorted(folder.glob(pattern))
        )
