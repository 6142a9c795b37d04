#!/bin/sh
# Make the archive that deploy/krew.yaml names, for the platform and the Python that it runs on:
# deploy/krew/archive.sh FOLDER. Prints the archive's sha256.
set -eu
out=$1
here=$(dirname "$0")
root=$here/../..
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
    --target "$stage/lib" -r "$root/requirements/runtime.txt"
python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$stage/lib" "$root"
cp "$here/kubectl-gpuslice" "$root/LICENSE" "$stage/"
mkdir -p "$out"
name=kubectl-gpuslice_$(uname -s | tr '[:upper:]' '[:lower:]')_$(uname -m).tar.gz
tar -C "$stage" -czf "$out/$name" --owner=0 --group=0 --sort=name .
sha256sum "$out/$name"
