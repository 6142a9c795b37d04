# SPDX-License-Identifier: Apache-2.0
"""`python -m deviceplugin`."""

from __future__ import annotations

import sys

from deviceplugin.command import main

if __name__ == "__main__":
    sys.exit(main())
