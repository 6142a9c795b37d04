#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The image's second layer: what requirements/runtime.txt locks, into /opt/gpuslice/dependencies.
# Usage: dependencies.sh ROOT, from the repository's folder; ROOT is what debian.sh made. $PYTHON
# runs pip, of any version: the wheels are chosen for the image's Python.
set -eu
root=$1
into=/opt/gpuslice/dependencies

"${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
    --require-hashes --only-binary :all: --no-deps --no-compile \
    --implementation cp --python-version 3.11 --target "$root$into" -r requirements/runtime.txt
# Scripts with another Python's path in them; type hints and C sources that nothing here reads.
rm -rf "$root$into/bin"
find "$root$into" -name '*.pyi' -delete -o -name '*.pxd' -delete -o -name '*.c' -delete
chroot "$root" /usr/bin/python3.11 -m compileall -q --invalidation-mode unchecked-hash -j 2 "$into"
