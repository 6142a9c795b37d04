# SPDX-License-Identifier: Apache-2.0
"""Writes why pods wait into their status, from a thread of its own: the latest words win."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import KubeError
from gpuslice.runtime.kube.resources import PODS
from gpuslice.sim.scheduler.views import Pod

log = logging.getLogger(__name__)

CALL_SECONDS = 5.0


class WordsWriter:
    """Sets the condition PodScheduled of pods that could not be placed.

    Args:
        client: writes.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._waiting: dict[str, tuple[Pod, str, str]] = {}
        self._said: dict[str, tuple[str, str]] = {}
        self._changed = threading.Condition()
        self._is_stopping = False
        self._writing = ""
        self._thread = threading.Thread(target=self._run, name="scheduler-words", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """End, with what is written so far."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def say(self, pod: Pod, reason: str, message: str) -> None:
        """Say why a pod waits.

        Args:
            pod: which.
            reason: Unschedulable, or SchedulerError for a bind that failed.
            message: for people.
        """
        with self._changed:
            if self._said.get(pod.uid) != (reason, message):
                self._waiting[pod.uid] = (pod, reason, message)
                self._said[pod.uid] = (reason, message)
                self._changed.notify_all()

    def forget(self, uid: str) -> None:
        """Say nothing more of a pod: it is bound or gone."""
        with self._changed:
            self._waiting.pop(uid, None)
            self._said.pop(uid, None)

    def hush(self, uid: str) -> None:
        """Drop what waits to be said of a pod, and wait until what is being said is written."""
        with self._changed:
            self._waiting.pop(uid, None)
            self._said.pop(uid, None)
            self._changed.wait_for(lambda: self._writing != uid, CALL_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_stopping:
                    self._changed.wait()
                if self._is_stopping:
                    return
                uid = next(iter(self._waiting))
                pod, reason, message = self._waiting.pop(uid)
                self._writing = uid
            is_written = self._write(pod, reason, message)
            with self._changed:
                self._writing = ""
                if not is_written:
                    self._said.pop(uid, None)
                self._changed.notify_all()

    def _write(self, pod: Pod, reason: str, message: str) -> bool:
        about: Mapping[str, Any] = pod.content["metadata"]
        condition: dict[str, Any] = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastProbeTime": None,
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        if "generation" in about:
            condition["observedGeneration"] = about["generation"]
        # The uid makes it fail for another pod of the same name.
        patch = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
        try:
            self._client.patch(
                PODS,
                about["name"],
                patch,
                namespace=about["namespace"],
                kind="strategic",
                status=True,
                timeout_seconds=CALL_SECONDS,
            )
        except KubeError as err:
            log.info("condition_not_written", extra={"pod": pod.key, "error": str(err)})
            return False
        return True
