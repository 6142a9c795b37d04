#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The image's first layer: Debian's Python and what it needs, and C++ for grpcio. No shell, no
# package manager. Usage: debian.sh ROOT, as root; ROOT is made.
set -eu
root=$1

# `extract` unpacks without running maintainer scripts, so no chroot is prepared for them and this
# works in an unprivileged `docker build` too. Below is what such a script would have done for us.
mmdebstrap --quiet --variant=extract --include=python3,libstdc++6 bookworm "$root"

mkdir -p "$root/dev" "$root/proc" "$root/sys" "$root/home" "$root/root"
mkdir -m 1777 -p "$root/tmp" "$root/var/tmp"
cat > "$root/etc/passwd" <<END
root:x:0:0:root:/root:/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin
gpuslice:x:65532:65532:gpuslice:/nonexistent:/sbin/nologin
END
cat > "$root/etc/group" <<END
root:x:0:
nogroup:x:65534:
gpuslice:x:65532:
END
echo 'hosts: files dns' > "$root/etc/nsswitch.conf"

# Of Python: no database, no debugger, no tests, no terminal games; none of it is imported.
rm -rf "$root"/usr/lib/python3*/lib2to3 "$root"/usr/lib/python3*/idlelib \
    "$root"/usr/lib/python3*/pydoc_data "$root"/usr/lib/python3*/unittest/test
# What packages bring for people, and the tools of a package manager that isn't there.
rm -rf "$root"/usr/share/doc "$root"/usr/share/man "$root"/usr/share/info \
    "$root"/usr/share/locale "$root"/usr/share/lintian "$root"/usr/share/bug \
    "$root"/usr/share/zoneinfo "$root"/usr/share/perl5 \
    "$root"/var/cache "$root"/var/lib/apt "$root"/var/log "$root"/etc/apt \
    "$root"/usr/bin/dpkg* "$root"/usr/bin/update-alternatives "$root"/usr/bin/p*db3* \
    "$root"/usr/bin/py3* "$root"/usr/bin/pydoc3* "$root"/usr/bin/pygettext3* "$root"/bin "$root"/sbin "$root"/usr/sbin "$root"/etc/init.d

ldconfig -r "$root"
# Without this every start of the read-only container would compile the standard library anew; and
# by hash, because the files' times differ from one way of making a layer to another.
chroot "$root" /usr/bin/python3.11 -m compileall -q -j 2 \
    --invalidation-mode unchecked-hash /usr/lib/python3.11
