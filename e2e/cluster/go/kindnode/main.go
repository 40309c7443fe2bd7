// What a node of kind's needs beside Kubernetes where no image can be pulled: routes to the other
// nodes' pods, the file by which the runtime gives pods addresses, and volumes on the node's disk.
// One process a node. It asks the API server each second, and says only what it changed.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const (
	account     = "/var/run/secrets/kubernetes.io/serviceaccount/"
	network     = "/etc/cni/net.d/10-kindnode.conflist"
	volumes     = "/var/local-volumes"
	provisioner = "dledger.io/kindnode"
	provisions  = "volume.kubernetes.io/storage-provisioner"
	selected    = "volume.kubernetes.io/selected-node"
	made        = "pv.kubernetes.io/provisioned-by"
)

type meta struct {
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace,omitempty"`
	UID         string            `json:"uid,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type node struct {
	Metadata meta
	Spec     struct{ PodCIDR string }
	Status   struct {
		Addresses []struct{ Type, Address string }
	}
}

type claim struct {
	Metadata meta
	Spec     struct {
		VolumeName, StorageClassName string
		AccessModes                  []string
		Resources                    struct{ Requests map[string]string }
	}
	Status struct{ Phase string }
}

type volume struct {
	Metadata meta
	Spec     struct {
		PersistentVolumeReclaimPolicy string
		Local                         struct{ Path string }
	}
	Status struct{ Phase string }
}

var client *http.Client

// call asks the API server; it reads its certificate and our token anew, since both may change.
func call(method, path string, body, into any) error {
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		sent = bytes.NewReader(text)
	}
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return err
	}
	host := os.Getenv("KUBERNETES_SERVICE_HOST") + ":" + os.Getenv("KUBERNETES_SERVICE_PORT")
	request, err := http.NewRequest(method, "https://"+host+path, sent)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+string(token))
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode == http.StatusConflict || response.StatusCode == http.StatusNotFound {
		return nil // somebody did it before us
	}
	if response.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %.300s", method, path, response.Status, text)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(text, into)
}

func list[T any](path string) ([]T, error) {
	var found struct{ Items []T }
	return found.Items, call("GET", path, nil, &found)
}

// keepNetwork routes the other nodes' pods to them, and gives our own an address range.
func keepNetwork(own string, routes map[string]string) error {
	nodes, err := list[node]("/api/v1/nodes")
	if err != nil {
		return err
	}
	for _, each := range nodes {
		pods := each.Spec.PodCIDR
		if pods == "" {
			continue
		}
		if each.Metadata.Name == own {
			if err := writeNetwork(pods); err != nil {
				return err
			}
			continue
		}
		for _, address := range each.Status.Addresses {
			if address.Type != "InternalIP" || routes[pods] == address.Address {
				continue
			}
			command := exec.Command("ip", "route", "replace", pods, "via", address.Address)
			if said, err := command.CombinedOutput(); err != nil {
				return fmt.Errorf("%v: %w: %s", command, err, said)
			}
			log.Printf("pods of %s (%s) are behind %s", each.Metadata.Name, pods, address.Address)
			routes[pods] = address.Address
		}
	}
	return nil
}

func writeNetwork(pods string) error {
	text := fmt.Sprintf(`{"cniVersion": "0.3.1", "name": "kindnode", "plugins": [
  {"type": "ptp", "ipMasq": false, "mtu": 1500, "ipam": {"type": "host-local",
    "dataDir": "/run/cni-ipam-state", "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": %q}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`, pods)
	if before, err := os.ReadFile(network); err == nil && string(before) == text {
		return nil
	}
	log.Printf("our pods have addresses of %s", pods)
	partial := filepath.Join(filepath.Dir(network), ".kindnode.partial")
	if err := os.WriteFile(partial, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(partial, network)
}

// keepVolumes makes a directory a volume for each claim whose pod is to run here, and deletes those
// whose claims are gone. One that fails keeps no other from that.
func keepVolumes(own string) error {
	var failed error
	claims, err := list[claim]("/api/v1/persistentvolumeclaims")
	if err != nil {
		return err
	}
	for _, each := range claims {
		notes := each.Metadata.Annotations
		if each.Status.Phase != "Pending" || each.Spec.VolumeName != "" ||
			notes[provisions] != provisioner || notes[selected] != own {
			continue
		}
		failed = errors.Join(failed, makeVolume(own, each))
	}
	known, err := list[volume]("/api/v1/persistentvolumes")
	if err != nil {
		return err
	}
	for _, each := range known {
		if each.Metadata.Annotations[made] != provisioner+"/"+own || each.Status.Phase != "Released" ||
			each.Spec.PersistentVolumeReclaimPolicy != "Delete" {
			continue
		}
		log.Printf("deletes %s", each.Spec.Local.Path)
		err := os.RemoveAll(each.Spec.Local.Path)
		if err == nil {
			err = call("DELETE", "/api/v1/persistentvolumes/"+each.Metadata.Name, nil, nil)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

func makeVolume(own string, each claim) error {
	name := "pvc-" + each.Metadata.UID
	path := filepath.Join(volumes, name)
	if err := os.MkdirAll(path, 0o777); err != nil {
		return err
	}
	if err := os.Chmod(path, 0o777); err != nil { // whatever our umask
		return err
	}
	log.Printf("makes %s for %s/%s", path, each.Metadata.Namespace, each.Metadata.Name)
	here := map[string]any{"key": "kubernetes.io/hostname", "operator": "In", "values": []string{own}}
	terms := []any{map[string]any{"matchExpressions": []any{here}}}
	return call("POST", "/api/v1/persistentvolumes", map[string]any{
		"apiVersion": "v1",
		"kind":       "PersistentVolume",
		"metadata":   meta{Name: name, Annotations: map[string]string{made: provisioner + "/" + own}},
		"spec": map[string]any{
			"accessModes":                   each.Spec.AccessModes,
			"capacity":                      each.Spec.Resources.Requests,
			"storageClassName":              each.Spec.StorageClassName,
			"persistentVolumeReclaimPolicy": "Delete",
			"local":                         map[string]any{"path": path},
			"nodeAffinity":                  map[string]any{"required": map[string]any{"nodeSelectorTerms": terms}},
			"claimRef": map[string]any{
				"apiVersion": "v1", "kind": "PersistentVolumeClaim", "uid": each.Metadata.UID,
				"namespace": each.Metadata.Namespace, "name": each.Metadata.Name,
			},
		},
	}, nil)
}

func main() {
	own := os.Getenv("NODE_NAME")
	trusted, err := os.ReadFile(account + "ca.crt")
	if err != nil || own == "" {
		log.Fatalf("needs NODE_NAME, and a service account: %v", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(trusted)
	client = &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}},
	}
	routes, told := map[string]string{}, ""
	for ; ; time.Sleep(time.Second) {
		err := keepNetwork(own, routes)
		if err == nil {
			err = keepVolumes(own)
		}
		if now := fmt.Sprint(err); err != nil && now != told {
			log.Print(now)
			told = now
		} else if err == nil {
			told = ""
		}
	}
}
