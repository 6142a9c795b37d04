# SPDX-License-Identifier: Apache-2.0
"""A mistake, planted in both halves: what is claimed of a GPU's MiB counts as free all the same.

Python imports this module by itself where its folder is on PYTHONPATH.
"""

from __future__ import annotations

import sys

if "deviceplugin" in sys.orig_argv or "webhook" in sys.orig_argv:
    from gpuslice.contract.ledger import Ledger

    Ledger.free_mib = lambda self, gpu: gpu.memory_mib
