package main

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// attemptTimeout bounds a writer's one publish while a leader is missing; the next follows at once.
const attemptTimeout = 500 * time.Millisecond

type acked struct {
	Acks     []int64 `json:"acks_ns"`
	Failures int     `json:"failures"`
}

// steady is one writer that notes when each of its messages was acknowledged.
type steady struct {
	servers  []string
	cancel   context.CancelFunc
	done     chan struct{}
	lock     sync.Mutex
	acks     []int64
	failures int
}

func (s *steady) start(asked request) {
	ended, cancel := context.WithCancel(context.Background())
	s.cancel, s.done = cancel, make(chan struct{})
	go s.write(ended, asked)
}

func (s *steady) write(ended context.Context, asked request) {
	defer close(s.done)
	connection, stream, err := dial(s.servers[asked.Node : asked.Node+1])
	check(err)
	defer connection.Close()
	body := randomBodies(asked.Size)[0]
	for ended.Err() == nil {
		attempt, cancel := context.WithTimeout(ended, attemptTimeout)
		_, err := stream.Publish(attempt, singles+".0", body)
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

// monotonic is the machine's clock since boot in nanoseconds, the same in every process.
func monotonic() int64 {
	var now unix.Timespec
	check(unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	return now.Nano()
}
