# SPDX-License-Identifier: Apache-2.0
"""What can wait: done one after the other in a thread of its own, so that fits never do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable

from gpuslice.runtime.kube.errors import KubeError

log = logging.getLogger(__name__)

Errand = Callable[[], None]


class Errands:
    """A queue in which a newer errand of a name takes the place of an older one."""

    def __init__(self) -> None:
        """Be empty."""
        self._changed = threading.Condition()
        self._waiting: dict[Hashable, Errand] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="errands", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; what waits is left undone: the next start finds it again."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def send(self, name: Hashable, errand: Errand) -> None:
        """Have something done soon."""
        with self._changed:
            self._waiting[name] = errand
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._waiting)
                if self._stopping:
                    return
                name = next(iter(self._waiting))
                errand = self._waiting.pop(name)
            try:
                errand()
            except KubeError as error:
                log.warning("errand_failed", extra={"errand": str(name), "error": str(error)})
