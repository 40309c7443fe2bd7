//go:build tools

// kubeadm of the Kubernetes that is built beside this, for nodes of kind's.
package tools

import _ "k8s.io/kubernetes/cmd/kubeadm"
