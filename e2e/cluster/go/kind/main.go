//go:build tools

// kind, for machines that cannot fetch its releases.
package tools

import _ "sigs.k8s.io/kind"
