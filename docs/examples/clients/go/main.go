// Sends ten messages and consumes them, with the RocketMQ client for Go.
//
//	go mod init hello && go get github.com/apache/rocketmq-clients/golang/v5@v5.1.4 && go mod tidy
//	go run . 127.0.0.1:18081 hello
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	messages = 10
	tries    = 60
)

func main() {
	endpoints, topic := os.Args[1], os.Args[2]
	rocketmq.EnableSsl = false // it is on by default; leave it on for port 8082
	config := &rocketmq.Config{
		Endpoint:      endpoints,
		ConsumerGroup: topic + "-readers",
		Credentials:   &credentials.SessionCredentials{},
	}
	var producer rocketmq.Producer
	tried(func() (err error) {
		if producer, err = rocketmq.NewProducer(config, rocketmq.WithTopics(topic)); err != nil {
			return err
		}
		return producer.Start()
	})
	came := make(chan string, 1024)
	var consumer rocketmq.PushConsumer
	tried(func() (err error) {
		consumer, err = rocketmq.NewPushConsumer(config,
			rocketmq.WithPushSubscriptionExpressions(
				map[string]*rocketmq.FilterExpression{topic: rocketmq.SUB_ALL}),
			rocketmq.WithPushMessageListener(&rocketmq.FuncMessageListener{
				Consume: func(message *rocketmq.MessageView) rocketmq.ConsumerResult {
					came <- string(message.GetBody())
					return rocketmq.SUCCESS
				}}),
			rocketmq.WithPushConsumptionThreadCount(20),
			rocketmq.WithPushMaxCacheMessageCount(1024))
		if err != nil {
			return err
		}
		return consumer.Start()
	})
	for number := 0; number < messages; number++ {
		body := []byte(fmt.Sprintf("hello %d", number))
		_, err := producer.Send(context.Background(), &rocketmq.Message{Topic: topic, Body: body})
		fatal(err)
	}
	bodies := map[string]bool{}
	for deadline := time.After(time.Minute); len(bodies) < messages; {
		select {
		case body := <-came:
			bodies[body] = true
			fmt.Println(body)
		case <-deadline:
			log.Fatal("they did not come")
		}
	}
	fatal(consumer.GracefulStop()) // as long as a poll that is under way: up to 20 s
	fatal(producer.GracefulStop())
}

// tried calls until that does not fail, as it does while the group is away.
func tried(call func() error) {
	for attempt := 1; ; attempt++ {
		err := call()
		if err == nil || attempt == tries {
			fatal(err)
			return
		}
		time.Sleep(time.Second)
	}
}

func fatal(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
