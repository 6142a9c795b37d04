#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The image's last layer: gpuslice's own wheel and its command, in /opt/gpuslice/product.
# Usage: product.sh ROOT, from the repository's folder; ROOT is what dependencies.sh made. $PYTHON
# must have hatchling: deploy/image/build.txt.
set -eu
root=$1
into=/opt/gpuslice/product
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT

"${PYTHON:-python3}" -m pip wheel --quiet --disable-pip-version-check --no-cache-dir \
    --no-deps --no-build-isolation --wheel-dir "$wheels" .
"${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
    --no-index --no-deps --no-compile --target "$root$into" "$wheels"/*.whl
rm -rf "$root$into/bin"
mkdir "$root$into/bin"
# pip's own would start the Python that pip runs in.
cat > "$root$into/bin/gpuslice" <<END
#!/usr/bin/python3
import sys

from gpuslice.cli.main import main

sys.exit(main())
END
chmod 755 "$root$into/bin/gpuslice"
chroot "$root" /usr/bin/python3.11 -m compileall -q --invalidation-mode unchecked-hash "$into"
