# SPDX-License-Identifier: Apache-2.0
"""Write what is generated from the code, into the project's folder.

python -m gpuslice.cli.reference .
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpuslice.cli.reference import metrics_page, sbom, settings_page


def main(root: Path) -> None:
    """Write the pages."""
    pages = {
        "docs/settings.md": settings_page.page(),
        "docs/metrics.md": metrics_page.page(),
        "deploy/sbom.json": sbom.page(root / "requirements" / "runtime.txt"),
    }
    for name, text in pages.items():
        (root / name).write_text(text, encoding="utf-8")


main(Path(sys.argv[1]))
