// Command control-plane is etcd or a Kubernetes component, whichever its first argument names. One program and not one
// for each: they share most of their code, and linking it is what costs time again and again.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

var components = map[string]func() *cobra.Command{
	"kube-apiserver": apiserver.NewAPIServerCommand,
}

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	os.Args = os.Args[1:]
	if os.Args[0] == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	component, known := components[os.Args[0]]
	if !known {
		usage()
	}
	os.Exit(cli.Run(component()))
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: control-plane etcd|kube-apiserver [flags]")
	os.Exit(2)
}
