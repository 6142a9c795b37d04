# SPDX-License-Identifier: Apache-2.0
"""A mistake, planted in the device plugin: its fits promise that there is always room.

Python imports this module by itself where its folder is on PYTHONPATH.
"""

from __future__ import annotations

import sys

if "deviceplugin" in sys.orig_argv:
    from gpuslice.contract import fits

    fits.more = lambda ledger, demand: 1000
