//go:build tools

// The command line of container runtimes, which kind's nodes have.
package tools

import _ "sigs.k8s.io/cri-tools/cmd/crictl"
