#!/bin/sh
# Says in one line what the machine lacks, and the package that brings it.
python=${1:-python3}
command -v "$python" >/dev/null 2>&1 || { echo "gpuslice needs python3 (3.11 or newer): apt-get install python3 python3-venv"; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gpuslice needs Python 3.11 or newer, and $python is older: apt-get install python3 python3-venv on Debian 12 or newer"; exit 1; }
"$python" -c 'import ensurepip, venv' 2>/dev/null || { echo "gpuslice needs Python's venv: apt-get install python3-venv"; exit 1; }
command -v cc >/dev/null 2>&1 || { echo "gpuslice needs a C compiler: apt-get install gcc libc6-dev"; exit 1; }
echo '#include <pthread.h>' | cc -E -x c - >/dev/null 2>&1 || { echo "gpuslice needs the C library's headers: apt-get install libc6-dev"; exit 1; }
