# SPDX-License-Identifier: Apache-2.0
"""The sharing pods of the cluster, watched by their label."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Final

from gpuslice.contract import names
from gpuslice.runtime.kube import resources
from gpuslice.runtime.kube.client import KubeClient
from gpuslice.runtime.kube.errors import KubeError, NotFoundError
from gpuslice.runtime.kube.objects import identity
from gpuslice.runtime.kube.resources import Json
from gpuslice.runtime.kube.watch import WatchCache
from webhook import sharingpods
from webhook.arbiter import Binding, UnreachableError
from webhook.sharingpods import SharingPod

CALL_SECONDS: Final = 1.0
_SHARING: Final = "sharing"
_BY_UID: Final = "uid"


def watch_pods(client: KubeClient, slice_resource: str) -> WatchCache:
    """Return a cache of the pods that admission labelled, not yet started."""
    return WatchCache(
        client,
        resources.PODS,
        labels=names.SHARE_LABEL,
        transform=functools.partial(_sharing, slice_resource),
        indexes={_BY_UID: lambda item: (item["metadata"].get("uid") or "",)},
    )


def _sharing(slice_resource: str, pod: Json) -> Json:
    return {**identity(pod), _SHARING: sharingpods.read(pod, slice_resource)}


def sharing_in(item: Json | None) -> SharingPod | None:
    """Return the pod in an object of the cache, as its listeners get them."""
    found = None if item is None else item[_SHARING]
    assert found is None or isinstance(found, SharingPod)
    return found


class PodCache:
    """The arbiter's `Pods`."""

    def __init__(self, client: KubeClient, cache: WatchCache, slice_resource: str) -> None:
        """Keep the client that reads single pods, and the cache that `watch_pods` made."""
        self._client = client
        self._cache = cache
        self._slice_resource = slice_resource

    def known(self, binding: Binding) -> SharingPod | None:
        """Return the pod of that uid if the cache has it: what it asks for never changes."""
        if binding.uid is None:
            return None
        found = self._cache.indexed(_BY_UID, binding.uid)
        return sharing_in(found[0]) if found else None

    def read(self, binding: Binding) -> SharingPod | None:
        """Ask the API server for the pod; None where there is none of that uid."""
        try:
            pod = self._client.get(
                resources.PODS,
                binding.name,
                namespace=binding.namespace,
                timeout_seconds=CALL_SECONDS,
            )
        except NotFoundError:
            return None
        except KubeError as error:
            raise UnreachableError(error.message) from error
        found = sharingpods.read(pod, self._slice_resource)
        return found if binding.uid in (None, found.pod.uid) else None

    def departing(self, uids: Collection[names.PodUid]) -> frozenset[names.PodUid]:
        """Return which of these pods are gone, or leave: a claim's pod is always labelled."""
        return frozenset(uid for uid in uids if self._departs(uid))

    def _departs(self, uid: names.PodUid) -> bool:
        found = self._cache.indexed(_BY_UID, uid)
        pod = sharing_in(found[0]) if found else None
        return pod is None or pod.is_leaving
