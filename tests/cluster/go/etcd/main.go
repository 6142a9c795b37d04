// SPDX-License-Identifier: Apache-2.0

// etcd as upstream's own main starts it, built from the module proxy at the version in go.mod.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
