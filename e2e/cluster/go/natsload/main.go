// Load on a NATS JetStream cluster for the bench: reads requests from standard input, one JSON
// object a line, and answers each with one line; e2e/bench/loads.py describes both. Ends with its
// input. With "create" behind the servers it makes the streams instead, and ends.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"
)

// answerTimeout bounds a publish under load: a server drops what it has no room for, unanswered.
const answerTimeout = 10 * time.Second

// afterFailure keeps a worker from asking without a pause where nothing can be answered.
const afterFailure = 5 * time.Millisecond

// Readers share a stream by its subjects, of which none should have several: for a consumer with
// several filters a server looks through the stream first, for seconds where it is long.
const subjects = 4

type request struct {
	Mode    string  `json:"mode"`
	Size    int     `json:"size_bytes"`
	Batch   int     `json:"batch"`
	Window  int     `json:"window"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"rate"`
	Pace    float64 `json:"pace_s"`
	Node    int     `json:"node"`
}

type loaded struct {
	Requests  int     `json:"requests"`
	Failures  int     `json:"failures"`
	Seconds   float64 `json:"seconds"`
	Latencies []int64 `json:"latencies_us"`
}

// main takes the servers' URLs, comma separated, in the order of their names n0, n1, n2.
func main() {
	servers := strings.Split(os.Args[1], ",")
	if len(os.Args) > 2 && os.Args[2] == "create" {
		check(create(servers))
		return
	}
	writer := &steady{servers: servers}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var asked request
		check(json.Unmarshal(lines.Bytes(), &asked))
		switch asked.Mode {
		case "append":
			answerOf(load(servers, asked))
		case "read":
			answerOf(read(servers, asked))
		case "steady":
			writer.start(asked)
			answer(acked{Acks: []int64{}})
		case "acks":
			answer(writer.take())
		case "stop":
			writer.stop()
			answer(writer.take())
		default:
			answerOf(loaded{}, errors.New("unknown mode "+asked.Mode))
		}
	}
}

// load publishes in a closed loop with a window of messages or atomic batches under way, through
// the server that leads the stream.
func load(servers []string, asked request) (loaded, error) {
	if asked.Rate > 0 {
		return loaded{}, errors.New("an open loop is not built for NATS")
	}
	name := streamOf(asked.Batch)
	connection, stream, err := atLeader(servers, name)
	if err != nil {
		return loaded{}, err
	}
	defer connection.Close()
	bodies := randomBodies(asked.Size)
	ended := time.Now().Add(time.Duration(asked.Seconds * float64(time.Second)))
	results := make([]loaded, asked.Window)
	var workers sync.WaitGroup
	for worker := range results {
		workers.Add(1)
		go func(result *loaded) {
			defer workers.Done()
			subject := fmt.Sprintf("%s.%d", name, worker%subjects)
			for number := worker; ; number++ {
				due := time.Now()
				if !due.Before(ended) {
					return
				}
				var err error
				if asked.Batch > 1 {
					err = publishBatch(stream, subject, bodies, asked.Batch)
				} else {
					err = publish(stream, subject, bodies[number%len(bodies)])
				}
				if err != nil {
					result.Failures++
					time.Sleep(afterFailure)
				} else if now := time.Now(); !now.After(ended) {
					result.Latencies = append(result.Latencies, now.Sub(due).Microseconds())
				}
			}
		}(&results[worker])
	}
	workers.Wait()
	total := loaded{Seconds: asked.Seconds, Latencies: []int64{}}
	for _, result := range results {
		total.Failures += result.Failures
		total.Latencies = append(total.Latencies, result.Latencies...)
	}
	total.Requests = len(total.Latencies)
	return total, nil
}

func publish(stream jetstream.JetStream, subject string, body []byte) error {
	future, err := stream.PublishAsync(subject, body)
	if err != nil {
		return err
	}
	select {
	case <-future.Ok():
		return nil
	case err := <-future.Err():
		return err
	case <-time.After(answerTimeout):
		return errors.New("no answer in time")
	}
}

func publishBatch(stream jetstream.JetStream, subject string, bodies [][]byte, batch int) error {
	publisher, err := jetstreamext.NewBatchPublisher(stream)
	if err != nil {
		return err
	}
	for number := range batch - 1 {
		if err := publisher.Add(subject, bodies[number%len(bodies)]); err != nil {
			return err
		}
	}
	attempt, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	_, err = publisher.Commit(attempt, subject, bodies[(batch-1)%len(bodies)])
	return err
}

// read has a window of ordered consumers share the subjects of a stream, from the first message to
// the last one of now, or until the time is over.
func read(servers []string, asked request) (loaded, error) {
	name := streamOf(asked.Batch)
	connection, stream, err := atLeader(servers, name)
	if err != nil {
		return loaded{}, err
	}
	defer connection.Close()
	began := time.Now()
	limit := time.Duration(asked.Seconds * float64(time.Second))
	timed, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var found atomic.Int64
	failed := make([]error, asked.Window)
	var readers sync.WaitGroup
	for reader := range asked.Window {
		readers.Add(1)
		go func() {
			defer readers.Done()
			failed[reader] = readShare(timed, stream, name, shareOf(name, reader, asked.Window), &found)
		}()
	}
	readers.Wait()
	took := time.Since(began).Seconds()
	requests := int(found.Load()) / asked.Batch
	return loaded{Requests: requests, Seconds: took, Latencies: []int64{}}, errors.Join(failed...)
}

// shareOf returns a reader's subjects; a single reader needs no filter.
func shareOf(name string, reader, readers int) (own []string) {
	for subject := reader; readers > 1 && subject < subjects; subject += readers {
		own = append(own, fmt.Sprintf("%s.%d", name, subject))
	}
	return own
}

func readShare(
	timed context.Context, stream jetstream.JetStream, name string, own []string, found *atomic.Int64,
) error {
	ordered, err := stream.OrderedConsumer(
		timed, name, jetstream.OrderedConsumerConfig{FilterSubjects: own},
	)
	if err != nil {
		return err
	}
	// A first pull may be lost; by default that shows after ten seconds, longer than a row is.
	messages, err := ordered.Messages(
		jetstream.PullMaxMessages(10_000), jetstream.PullExpiry(5*time.Second),
		jetstream.PullHeartbeat(500*time.Millisecond),
	)
	if err != nil {
		return err
	}
	defer messages.Stop()
	defer context.AfterFunc(timed, messages.Stop)()
	for {
		message, err := messages.Next()
		if timed.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		found.Add(1)
		if told, err := message.Metadata(); err == nil && told.NumPending == 0 {
			return nil
		}
	}
}

// randomBodies are many different ones, so that nothing on the way can compress them.
func randomBodies(size int) [][]byte {
	source := rand.New(rand.NewSource(1))
	bodies := make([][]byte, 256)
	for number := range bodies {
		bodies[number] = make([]byte, size)
		source.Read(bodies[number])
	}
	return bodies
}

func answerOf(found loaded, err error) {
	if err != nil {
		answer(map[string]string{"error": err.Error()})
		return
	}
	answer(found)
}

func answer(value any) {
	line, err := json.Marshal(value)
	check(err)
	fmt.Println(string(line))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
