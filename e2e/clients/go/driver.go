// Drives the unmodified RocketMQ client for Go: JSON lines in, JSON lines out.
//
// e2e/clients/drivers.py has the commands; each runs in a goroutine of its own. TLS is a setting
// of the whole process, which the first client's command decides; any certificate is accepted.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	shownBytes = 64
	lineBytes  = 16 << 20
)

type command struct {
	ID           int               `json:"id"`
	Do           string            `json:"do"`
	Name         string            `json:"name"`
	Endpoints    []string          `json:"endpoints"`
	TLS          bool              `json:"tls"`
	Topic        string            `json:"topic"`
	Group        string            `json:"group"`
	Tag          *string           `json:"tag"`
	SQL          string            `json:"sql"`
	Fail         int32             `json:"fail"`
	AwaitS       float64           `json:"await_s"`
	Producer     string            `json:"producer"`
	Text         string            `json:"text"`
	Size         *int              `json:"size"`
	Keys         []string          `json:"keys"`
	Properties   map[string]string `json:"properties"`
	Async        bool              `json:"async"`
	MessageGroup *string           `json:"message_group"`
	DeliverAtMs  *int64            `json:"deliver_at_ms"`
	Priority     *int32            `json:"priority"`
	Transaction  bool              `json:"transaction"`
	End          string            `json:"end"`
	Consumer     string            `json:"consumer"`
	Count        int32             `json:"count"`
	InvisibleS   float64           `json:"invisible_s"`
	Handle       int               `json:"handle"`
}

type answer = map[string]any

type stoppable interface{ GracefulStop() error }

var (
	mutex    sync.Mutex
	clients  = map[string]stoppable{}
	received = map[int]*rmq.MessageView{}
)

func say(line answer) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	mutex.Lock()
	defer mutex.Unlock()
	os.Stdout.Write(append(text, '\n'))
}

func keep(name string, client stoppable) {
	mutex.Lock()
	defer mutex.Unlock()
	clients[name] = client
}

func client[T any](name string) (T, error) {
	mutex.Lock()
	defer mutex.Unlock()
	found, ok := clients[name].(T)
	if !ok {
		return found, fmt.Errorf("no such client: %s", name)
	}
	return found, nil
}

func message(handle int) *rmq.MessageView {
	mutex.Lock()
	defer mutex.Unlock()
	return received[handle]
}

func seconds(value float64) time.Duration {
	return time.Duration(value * float64(time.Second))
}

func config(asked *command) *rmq.Config {
	rmq.EnableSsl = asked.TLS
	return &rmq.Config{
		Endpoint:      strings.Join(asked.Endpoints, ";"),
		ConsumerGroup: asked.Group,
		Credentials:   &credentials.SessionCredentials{},
	}
}

func subscription(asked *command) map[string]*rmq.FilterExpression {
	filter := rmq.SUB_ALL
	if asked.SQL != "" {
		filter = rmq.NewFilterExpressionWithType(asked.SQL, rmq.SQL92)
	} else if asked.Tag != nil {
		filter = rmq.NewFilterExpression(*asked.Tag)
	}
	return map[string]*rmq.FilterExpression{asked.Topic: filter}
}

func startProducer(asked *command) error {
	options := []rmq.ProducerOption{rmq.WithTopics(asked.Topic)}
	if asked.Transaction {
		check := func(half *rmq.MessageView) rmq.TransactionResolution {
			if bytes.HasPrefix(half.GetBody(), []byte("no")) {
				return rmq.ROLLBACK
			}
			return rmq.COMMIT
		}
		options = append(options, rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: check}))
	}
	producer, err := rmq.NewProducer(config(asked), options...)
	if err == nil {
		err = producer.Start()
	}
	if err == nil {
		keep(asked.Name, producer)
	}
	return err
}

func body(asked *command) []byte {
	text := []byte(asked.Text)
	if asked.Size == nil {
		return text
	}
	return bytes.Repeat(text, *asked.Size/len(text)+1)[:*asked.Size]
}

func send(asked *command) (answer, error) {
	producer, err := client[rmq.Producer](asked.Producer)
	if err != nil {
		return nil, err
	}
	sent := &rmq.Message{Topic: asked.Topic, Body: body(asked)}
	if asked.Tag != nil {
		sent.SetTag(*asked.Tag)
	}
	sent.SetKeys(asked.Keys...)
	for key, value := range asked.Properties {
		sent.AddProperty(key, value)
	}
	if asked.MessageGroup != nil {
		sent.SetMessageGroup(*asked.MessageGroup)
	}
	if asked.DeliverAtMs != nil {
		sent.SetDelayTimestamp(time.UnixMilli(*asked.DeliverAtMs))
	}
	if asked.Priority != nil {
		sent.SetPriority(*asked.Priority)
	}
	told := answer{}
	switch {
	case asked.Transaction:
		transaction := producer.BeginTransaction()
		_, err = producer.SendWithTransaction(context.Background(), sent, transaction)
		if err == nil {
			end(transaction, asked.End, told)
		}
	case asked.Async:
		done := make(chan error, 1)
		producer.SendAsync(context.Background(), sent,
			func(_ context.Context, _ []*rmq.SendReceipt, err error) { done <- err })
		err = <-done
	default:
		_, err = producer.Send(context.Background(), sent)
	}
	return told, err
}

// end ends a transaction as its producer wants it, if it does; told has what failed.
func end(transaction rmq.Transaction, how string, told answer) {
	var err error
	switch how {
	case "commit":
		err = transaction.Commit()
	case "rollback":
		err = transaction.RollBack()
	}
	if err != nil { // the message is sent; its checker decides
		told["end_error"] = err.Error()
	}
}

func described(found *rmq.MessageView, handle int) answer {
	whole := found.GetBody()
	return answer{
		"handle":     handle,
		"text":       string(whole[:min(shownBytes, len(whole))]),
		"size":       len(whole),
		"sha256":     fmt.Sprintf("%x", sha256.Sum256(whole)),
		"tag":        found.GetTag(),
		"keys":       append([]string{}, found.GetKeys()...),
		"properties": found.GetProperties(),
		"attempt":    found.GetDeliveryAttempt(),
	}
}

func push(asked *command) error {
	consume := func(found *rmq.MessageView) rmq.ConsumerResult {
		event := described(found, 0)
		event["event"], event["consumer"] = "message", asked.Name
		say(event)
		if found.GetDeliveryAttempt() > asked.Fail {
			return rmq.SUCCESS
		}
		return rmq.FAILURE
	}
	consumer, err := rmq.NewPushConsumer(config(asked),
		rmq.WithPushSubscriptionExpressions(subscription(asked)),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume}))
	if err == nil {
		err = consumer.Start()
	}
	if err == nil {
		keep(asked.Name, consumer)
	}
	return err
}

func simple(asked *command) error {
	consumer, err := rmq.NewSimpleConsumer(config(asked),
		rmq.WithSimpleAwaitDuration(seconds(asked.AwaitS)),
		rmq.WithSimpleSubscriptionExpressions(subscription(asked)))
	if err == nil {
		err = consumer.Start()
	}
	if err == nil {
		keep(asked.Name, consumer)
	}
	return err
}

func receive(asked *command) (answer, error) {
	consumer, err := client[rmq.SimpleConsumer](asked.Consumer)
	if err != nil {
		return nil, err
	}
	found, err := consumer.Receive(context.Background(), asked.Count, seconds(asked.InvisibleS))
	if status, ok := rmq.AsErrRpcStatus(err); ok && status.GetCode() == 40401 {
		err = nil // to this client, no new message is an error
	}
	messages := make([]answer, 0, len(found))
	for _, each := range found {
		mutex.Lock()
		handle := len(received) + 1
		received[handle] = each
		mutex.Unlock()
		messages = append(messages, described(each, handle))
	}
	return answer{"messages": messages}, err
}

func carryOut(asked *command) (answer, error) {
	switch asked.Do {
	case "producer":
		return answer{}, startProducer(asked)
	case "send":
		return send(asked)
	case "push":
		return answer{}, push(asked)
	case "simple":
		return answer{}, simple(asked)
	case "receive":
		return receive(asked)
	case "ack", "change":
		consumer, err := client[rmq.SimpleConsumer](asked.Consumer)
		if err != nil {
			return nil, err
		}
		if asked.Do == "ack" {
			return answer{}, consumer.Ack(context.Background(), message(asked.Handle))
		}
		return answer{}, consumer.ChangeInvisibleDuration(message(asked.Handle), seconds(asked.InvisibleS))
	case "stop":
		stopped, err := client[stoppable](asked.Name)
		if err != nil {
			return nil, err
		}
		return answer{}, stopped.GracefulStop()
	}
	return nil, fmt.Errorf("the Go client has nothing for %q", asked.Do)
}

func main() {
	rmq.ResetLogger()
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, lineBytes)
	for lines.Scan() {
		asked := &command{}
		if err := json.Unmarshal(lines.Bytes(), asked); err != nil {
			panic(err)
		}
		go func() {
			told, err := carryOut(asked)
			if err != nil {
				told = answer{"error": err.Error()}
			}
			told["id"] = asked.ID
			say(told)
		}()
	}
	os.Exit(0) // the clients' own goroutines do not end
}
