# SPDX-License-Identifier: Apache-2.0
"""Write the generated pages of docs/: `python -m gpuslice.cli.reference docs`."""

from __future__ import annotations

import sys
from pathlib import Path

from gpuslice.cli.reference import metrics_page, settings_page


def main(folder: Path) -> None:
    """Write the pages into a folder."""
    pages = {"settings.md": settings_page.page(), "metrics.md": metrics_page.page()}
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


main(Path(sys.argv[1]))
