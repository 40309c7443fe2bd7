// Load on an etcd cluster for the bench: reads requests from standard input, one JSON object a
// line, and answers each with one line; e2e/bench/loads.py describes both. Ends with its input.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// attemptTimeout bounds one put while a leader is missing; the next attempt follows at once.
const attemptTimeout = 500 * time.Millisecond

// keys bounds the store: puts go round a fixed set, so that a long run does not grow it.
const keys = 100_000

type request struct {
	Mode    string  `json:"mode"`
	Size    int     `json:"size_bytes"`
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

type acked struct {
	Acks     []int64 `json:"acks_ns"`
	Failures int     `json:"failures"`
}

func main() {
	endpoints := strings.Split(os.Args[1], ",")
	writer := &steady{endpoints: endpoints}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var asked request
		check(json.Unmarshal(lines.Bytes(), &asked))
		switch asked.Mode {
		case "append":
			answer(load(endpoints, asked))
		case "steady":
			writer.start(asked)
			answer(acked{Acks: []int64{}})
		case "acks":
			answer(writer.take())
		case "stop":
			writer.stop()
			answer(writer.take())
		default:
			answer(map[string]string{"error": "unknown mode " + asked.Mode})
		}
	}
}

// load puts for a while: closed loop with a window of puts under way, or at a rate, in which case
// a latency counts from when the put was due.
func load(endpoints []string, asked request) loaded {
	client := dial([]string{endpoints[asked.Node]})
	defer client.Close()
	value := body(asked.Size)
	began := time.Now()
	end := began.Add(time.Duration(asked.Seconds * float64(time.Second)))
	var next atomic.Int64
	results := make([]loaded, asked.Window)
	var workers sync.WaitGroup
	for worker := range results {
		workers.Add(1)
		go func(result *loaded) {
			defer workers.Done()
			for {
				number := next.Add(1) - 1
				due := time.Now()
				if asked.Rate > 0 {
					due = began.Add(time.Duration(float64(number) / asked.Rate * float64(time.Second)))
				}
				if !due.Before(end) {
					return
				}
				time.Sleep(time.Until(due))
				if _, err := client.Put(context.Background(), key(number), value); err != nil {
					result.Failures++
				} else if now := time.Now(); asked.Rate > 0 || !now.After(end) {
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
	return total
}

// steady is one writer that notes when each of its puts was acknowledged.
type steady struct {
	endpoints []string
	cancel    context.CancelFunc
	done      chan struct{}
	lock      sync.Mutex
	acks      []int64
	failures  int
}

func (s *steady) start(asked request) {
	context_, cancel := context.WithCancel(context.Background())
	s.cancel, s.done = cancel, make(chan struct{})
	go s.write(context_, asked)
}

func (s *steady) write(ended context.Context, asked request) {
	defer close(s.done)
	client := dial([]string{s.endpoints[asked.Node]})
	defer client.Close()
	value := body(asked.Size)
	for number := int64(0); ended.Err() == nil; number++ {
		attempt, cancel := context.WithTimeout(ended, attemptTimeout)
		_, err := client.Put(attempt, key(number), value)
		cancel()
		s.note(err)
		time.Sleep(time.Duration(asked.Pace * float64(time.Second)))
	}
}

func (s *steady) note(err error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if err != nil {
		s.failures++
	} else {
		s.acks = append(s.acks, monotonic())
	}
}

func (s *steady) take() acked {
	s.lock.Lock()
	defer s.lock.Unlock()
	taken := acked{Acks: append([]int64{}, s.acks...), Failures: s.failures}
	s.acks, s.failures = nil, 0
	return taken
}

func (s *steady) stop() {
	s.cancel()
	<-s.done
}

func dial(endpoints []string) *clientv3.Client {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
	})
	check(err)
	return client
}

// monotonic is the machine's clock since boot in nanoseconds, the same in every process.
func monotonic() int64 {
	var now unix.Timespec
	check(unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	return now.Nano()
}

func key(number int64) string { return fmt.Sprintf("bench/%08d", number%keys) }

func body(size int) string {
	bytes := make([]byte, size)
	rand.New(rand.NewSource(1)).Read(bytes)
	return string(bytes)
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
