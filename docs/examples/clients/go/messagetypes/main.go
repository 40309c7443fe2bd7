// Messages of each type, with the RocketMQ client for Go: sends some, and consumes them.
//
//	go mod init hello && go get github.com/apache/rocketmq-clients/golang/v5@v5.1.4 && go mod tidy
//	dledger topic create transfers --type FIFO --endpoint 127.0.0.1:18281
//	go run ./messagetypes 127.0.0.1:18081 transfers fifo
//
// Beside fifo there are delay, transaction and priority, for topics of these types; sql and dead,
// for NORMAL ones.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	protocol "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

const (
	patience  = time.Minute
	invisible = 30 * time.Second
)

var (
	ctx    = context.Background()
	config *rocketmq.Config
	topic  string
)

func main() {
	topic = os.Args[2]
	rocketmq.EnableSsl = false // it is on by default; leave it on for port 8082
	config = &rocketmq.Config{
		Endpoint:      os.Args[1],
		ConsumerGroup: topic + "-readers",
		Credentials:   &credentials.SessionCredentials{},
	}
	types := map[string]func() error{
		"fifo": fifo, "delay": delay, "transaction": transaction,
		"priority": priority, "sql": sql, "dead": dead,
	}
	if err := types[os.Args[3]](); err != nil {
		log.Fatal(err)
	}
}

// fifo: messages of a message group come in the order in which they were sent.
func fifo() error {
	producer, err := startProducer()
	if err != nil {
		return err
	}
	for number := 0; number < 5; number++ {
		for _, account := range []string{"ada", "bob"} {
			message := newMessage(fmt.Sprintf("%s %d", account, number))
			message.SetMessageGroup(account)
			if _, err := send(producer, message); err != nil { // before the next one of its group
				return err
			}
		}
	}
	return consume(topic, 10, rocketmq.SUB_ALL)
}

// delay: a message comes at its time; one that is recalled before, never.
func delay() error {
	producer, err := startProducer()
	if err != nil {
		return err
	}
	recalled, reminder := newMessage("recalled"), newMessage("reminder")
	recalled.SetDelayTimestamp(time.Now().Add(5 * time.Second))
	reminder.SetDelayTimestamp(time.Now().Add(6 * time.Second))
	receipt, err := send(producer, recalled)
	if err != nil {
		return err
	}
	if err := tried(func() error {
		_, err := producer.Recall(ctx, topic, receipt.RecallHandle)
		return err // NOT_FOUND: it has come
	}); err != nil {
		return err
	}
	if _, err := send(producer, reminder); err != nil {
		return err
	}
	return consume(topic, 1, rocketmq.SUB_ALL)
}

// transaction: a message comes if its transaction is committed, by its producer or by its checker.
func transaction() error {
	var paid sync.Map // a table of your database
	check := func(message *rocketmq.MessageView) rocketmq.TransactionResolution {
		if _, ok := paid.Load(message.GetMessageId()); ok {
			return rocketmq.COMMIT
		}
		return rocketmq.ROLLBACK
	}
	producer, err := startProducer(
		rocketmq.WithTransactionChecker(&rocketmq.TransactionChecker{Check: check}))
	if err != nil {
		return err
	}

	order, id, err := begin(producer, "paid")
	if err != nil {
		return err
	}
	paid.Store(id, true) // commit your own transaction, with the id in it
	if err := order.Commit(); err != nil {
		log.Print("the checker is asked, and says the same: ", err)
	}

	order, _, err = begin(producer, "declined")
	if err != nil {
		return err
	}
	if err := order.RollBack(); err != nil {
		log.Print("the checker is asked, and says the same: ", err)
	}

	_, id, err = begin(producer, "paid, and left open")
	if err != nil {
		return err
	}
	paid.Store(id, true) // the checker is asked 6 s later
	return consume(topic, 2, rocketmq.SUB_ALL)
}

// begin sends a message in a transaction; one that is tried again is in another transaction.
func begin(producer rocketmq.Producer, body string) (begun rocketmq.Transaction, id string, err error) {
	err = tried(func() error {
		begun = producer.BeginTransaction()
		receipts, err := producer.SendWithTransaction(ctx, newMessage(body), begun)
		if err == nil {
			id = receipts[0].MessageID
		}
		return err
	})
	return begun, id, err
}

// priority: of what waits, the highest priority comes first.
func priority() error {
	producer, err := startProducer()
	if err != nil {
		return err
	}
	for number := int32(1); number <= 3; number++ {
		message := newMessage(fmt.Sprintf("priority %d", number))
		if err := message.SetPriority(number); err != nil {
			return err
		}
		if _, err := send(producer, message); err != nil {
			return err
		}
	}
	return consume(topic, 3, rocketmq.SUB_ALL)
}

// sql: a consumer gets what matches its filter.
func sql() error {
	producer, err := startProducer()
	if err != nil {
		return err
	}
	for _, price := range []int{5, 25, 15, 35, 12} {
		message := newMessage(fmt.Sprintf("price %d", price))
		message.AddProperty("price", strconv.Itoa(price))
		if _, err := send(producer, message); err != nil {
			return err
		}
	}
	filter := rocketmq.NewFilterExpressionWithType("price BETWEEN 10 AND 20", rocketmq.SQL92)
	return consume(topic, 2, filter)
}

// dead: what is not acknowledged is a dead letter after the attempts that its consumer group has:
// 17, unless it has other numbers, by dledger group set NAME --max-attempts 2.
func dead() error {
	producer, err := startProducer()
	if err != nil {
		return err
	}
	if _, err := send(producer, newMessage("unreadable")); err != nil {
		return err
	}
	consumer, err := startConsumer(topic, rocketmq.SUB_ALL)
	if err != nil {
		return err
	}
	for moved := false; !moved; {
		messages, err := receive(consumer, time.Second)
		if err != nil {
			return err
		}
		moved = len(messages) == 0 // else not acknowledged, it comes again after a second
	}
	return consume("%DLQ%"+config.ConsumerGroup, 1, rocketmq.SUB_ALL)
}

func newMessage(body string) *rocketmq.Message {
	return &rocketmq.Message{Topic: topic, Body: []byte(body)}
}

// send sends a message until that does not fail. What failed may be stored all the same: what is
// sent again is another message, and a reader may get both.
func send(producer rocketmq.Producer, message *rocketmq.Message) (*rocketmq.SendReceipt, error) {
	var receipts []*rocketmq.SendReceipt
	err := tried(func() (err error) {
		receipts, err = producer.Send(ctx, message)
		return err
	})
	if err != nil {
		return nil, err
	}
	return receipts[0], nil
}

// consume prints and acknowledges so many messages, one by one, so that their order is seen.
func consume(topic string, count int, filter *rocketmq.FilterExpression) error {
	consumer, err := startConsumer(topic, filter)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); count > 0; {
		if time.Now().After(deadline) {
			return errors.New("they did not come")
		}
		messages, err := receive(consumer, invisible)
		if err != nil {
			return err
		}
		for _, message := range messages {
			late := ""
			if due := message.GetDeliveryTimestamp(); due != nil {
				late = fmt.Sprintf(", %d ms after its time", time.Since(*due).Milliseconds())
			}
			fmt.Println(string(message.GetBody()) + late)
			if err := tried(func() error { return consumer.Ack(ctx, message) }); err != nil {
				return err
			}
			count--
		}
	}
	return nil
}

// receive returns a message or none, which is an error to this client.
func receive(consumer rocketmq.SimpleConsumer, invisible time.Duration) (messages []*rocketmq.MessageView, err error) {
	err = tried(func() (err error) {
		messages, err = consumer.Receive(ctx, 1, invisible)
		if codeOf(err) == protocol.Code_MESSAGE_NOT_FOUND {
			return nil
		}
		return err
	})
	return messages, err
}

func startProducer(options ...rocketmq.ProducerOption) (producer rocketmq.Producer, err error) {
	err = triedUnless(never, func() (err error) {
		producer, err = rocketmq.NewProducer(config, append(options, rocketmq.WithTopics(topic))...)
		if err != nil {
			return err
		}
		return producer.Start()
	})
	return producer, err
}

func startConsumer(topic string, filter *rocketmq.FilterExpression) (consumer rocketmq.SimpleConsumer, err error) {
	err = triedUnless(never, func() (err error) {
		consumer, err = rocketmq.NewSimpleConsumer(config,
			rocketmq.WithSimpleAwaitDuration(5*time.Second),
			rocketmq.WithSimpleSubscriptionExpressions(
				map[string]*rocketmq.FilterExpression{topic: filter}))
		if err != nil {
			return err
		}
		return consumer.Start()
	})
	return consumer, err
}

// tried calls until that does not fail; a refusal is final, as it would be the same the next time.
func tried(call func() error) error { return triedUnless(refused, call) }

func triedUnless(final func(error) bool, call func() error) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(500 * time.Millisecond) {
		err := call()
		if err == nil || final(err) || time.Now().After(deadline) {
			return err
		}
	}
}

// never: a client does not start while the group, or its topic, is away.
func never(error) bool { return false }

// refused tells what the group has decided (4xxxx) from what it could not do, or not yet.
func refused(err error) bool {
	code := codeOf(err)
	return code/10000 == 4 && code != protocol.Code_TOO_MANY_REQUESTS
}

func codeOf(err error) protocol.Code {
	if status, ok := rocketmq.AsErrRpcStatus(err); ok {
		return protocol.Code(status.GetCode())
	}
	return protocol.Code_CODE_UNSPECIFIED
}
