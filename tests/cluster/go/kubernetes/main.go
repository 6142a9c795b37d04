// SPDX-License-Identifier: Apache-2.0

// One binary for every Kubernetes program of the test cluster. Linking is a third of the build, and
// six programs share nearly all of their packages: linked once they cost one link and 139 MB.
//
//	kubernetes kube-apiserver --secure-port=6443 ...
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var programs = map[string]func() *cobra.Command{
	"kube-apiserver":          func() *cobra.Command { return apiserver.NewAPIServerCommand() },
	"kube-controller-manager": func() *cobra.Command { return controllermanager.NewControllerManagerCommand() },
	"kube-proxy":              func() *cobra.Command { return proxy.NewProxyCommand() },
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kubectl":                 func() *cobra.Command { return kubectl.NewDefaultKubectlCommand() },
}

func main() {
	if len(os.Args) < 2 || programs[os.Args[1]] == nil {
		names := make([]string, 0, len(programs))
		for name := range programs {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "usage: kubernetes {%s} [flags]\n", strings.Join(names, "|"))
		os.Exit(2)
	}
	name := os.Args[1]
	os.Args = os.Args[1:] // the programs read their flags, and kubectl its plugins' prefix, from here
	if name == "kubectl" {
		// kubectl prints its errors itself, and its exit codes mean something (1: `kubectl diff` found one).
		kubectlutil.CheckErr(cli.RunNoErrOutput(programs[name]()))
		return
	}
	os.Exit(cli.Run(programs[name]()))
}
