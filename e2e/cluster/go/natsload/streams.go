package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// wholeTimeout bounds the wait for three servers that run, and for a stream's three replicas.
const wholeTimeout = 60 * time.Second

// Streams: singles is what comes message by message, batches what comes in atomic batches.
const (
	singles = "SINGLES"
	batches = "BATCHES"
)

// create makes both streams, of three replicas on files, as soon as three servers can.
func create(servers []string) error {
	connection, stream, err := dial(servers)
	if err != nil {
		return err
	}
	defer connection.Close()
	ended := time.Now().Add(wholeTimeout)
	for _, name := range []string{singles, batches} {
		config := jetstream.StreamConfig{
			Name: name, Subjects: []string{name + ".>"}, Replicas: 3,
			Storage: jetstream.FileStorage, AllowAtomicPublish: name == batches,
		}
		for {
			attempt, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			_, err = stream.CreateOrUpdateStream(attempt, config)
			cancel()
			if err == nil {
				break
			}
			if time.Now().After(ended) {
				return fmt.Errorf("stream %s: %w", name, err)
			}
			time.Sleep(250 * time.Millisecond)
		}
	}
	return nil
}

func streamOf(batch int) string {
	if batch > 1 {
		return batches
	}
	return singles
}

// dial connects to the first of these servers that answers.
func dial(servers []string) (*nats.Conn, jetstream.JetStream, error) {
	connection, err := nats.Connect(
		strings.Join(servers, ","), nats.DontRandomize(), nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true), nats.Timeout(3*time.Second),
	)
	if err != nil {
		return nil, nil, err
	}
	stream, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(1<<20))
	return connection, stream, err
}

// atLeader connects to the server that leads a stream, once all of its replicas are current.
func atLeader(servers []string, name string) (*nats.Conn, jetstream.JetStream, error) {
	connection, stream, err := dial(servers)
	if err != nil {
		return nil, nil, err
	}
	defer connection.Close()
	ended := time.Now().Add(wholeTimeout)
	for {
		attempt, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		found, err := stream.Stream(attempt, name)
		cancel()
		if err == nil {
			if leader := wholeAt(found.CachedInfo().Cluster); leader >= 0 {
				return dial(servers[leader : leader+1])
			}
		}
		if time.Now().After(ended) {
			return nil, nil, fmt.Errorf("stream %s is not whole: %v", name, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// wholeAt returns which server leads, by the number in its name; -1 while a replica is behind.
func wholeAt(cluster *jetstream.ClusterInfo) int {
	var leader int
	if cluster == nil || len(cluster.Replicas) != 2 {
		return -1
	}
	if _, err := fmt.Sscanf(cluster.Leader, "n%d", &leader); err != nil {
		return -1
	}
	for _, replica := range cluster.Replicas {
		if replica.Offline || !replica.Current {
			return -1
		}
	}
	return leader
}
