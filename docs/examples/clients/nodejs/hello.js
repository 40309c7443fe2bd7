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
const TRIES = 60;
const wait = ms => new Promise(resolve => setTimeout(resolve, ms));

// A client cannot start while the group is away.
async function started(make) {
  for (let attempt = 1; ; attempt++) {
    const client = make();
    try {
      await client.startup();
      return client;
    } catch (error) {
      if (attempt === TRIES) throw error;
      await wait(1000);
    }
  }
}

// Its own retries follow each other at once, and are over before a new leader is there.
async function send(producer, message) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await producer.send(message);
    } catch (error) {
      if (attempt === ATTEMPTS) throw error;
      await wait(100 * attempt);
    }
  }
}

async function main([ endpoints, topic ]) {
  const common = { endpoints, namespace: '' }; // one address: where to ask for the others
  const producer = await started(() => new Producer({ ...common, topics: [ topic ] }));
  const bodies = new Set();
  const complete = new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error('they did not come')), 60_000).unref();
    const consume = async message => {
      bodies.add(message.body.toString());
      console.log(message.body.toString());
      if (bodies.size === MESSAGES) resolve();
      return ConsumeResult.SUCCESS;
    };
    started(() => new PushConsumer({
      ...common,
      consumerGroup: `${topic}-readers`,
      subscriptions: new Map([[ topic, new FilterExpression('*') ]]),
      messageListener: { consume },
    })).catch(reject);
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
