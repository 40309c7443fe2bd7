// Sends ten messages and consumes them, with the RocketMQ client for Node.js.
//
//   npm install rocketmq-client-nodejs@1.0.8
//   node hello.js 127.0.0.1:18081 hello
'use strict';

const {
  ConsumeResult, FilterExpression, Producer, PushConsumer,
} = require('rocketmq-client-nodejs');

const MESSAGES = 10;
const ATTEMPTS = 10;

// Its own retries follow each other at once, and are over before a new leader is there.
async function send(producer, message) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await producer.send(message);
    } catch (error) {
      if (attempt === ATTEMPTS) throw error;
      await new Promise(resolve => setTimeout(resolve, 100 * attempt));
    }
  }
}

async function main([ endpoints, topic ]) {
  const common = { endpoints, namespace: '' }; // one address: where to ask for the others
  const producer = new Producer({ ...common, topics: [ topic ] });
  await producer.startup();
  const bodies = new Set();
  const complete = new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error('they did not come')), 60_000).unref();
    const consume = async message => {
      bodies.add(message.body.toString());
      console.log(message.body.toString());
      if (bodies.size === MESSAGES) resolve();
      return ConsumeResult.SUCCESS;
    };
    const consumer = new PushConsumer({
      ...common,
      consumerGroup: `${topic}-readers`,
      subscriptions: new Map([[ topic, new FilterExpression('*') ]]),
      messageListener: { consume },
    });
    consumer.startup().catch(reject);
  });
  for (let number = 0; number < MESSAGES; number++) {
    await send(producer, { topic, body: Buffer.from(`hello ${number}`) });
  }
  await complete;
}

main(process.argv.slice(2)).then(
  () => process.exit(0), // without waiting for polls: what is not acknowledged comes again
  error => {
    console.error(error);
    process.exit(1);
  },
);
