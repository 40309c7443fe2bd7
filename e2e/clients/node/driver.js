// Drives the unmodified RocketMQ client for Node.js: JSON lines in, JSON lines out.
//
// e2e/clients/drivers.py has the commands; they run beside each other. This client takes one
// address: of several it makes one host name.
'use strict';

const { createHash } = require('node:crypto');
const readline = require('node:readline');
const {
  ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer,
} = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } =
  require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const clients = new Map();
const received = new Map();
let handles = 0;

function say(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function log(...words) {
  process.stderr.write(`${words.map(String).join(' ')}\n`);
}

const logger = { info: log, warn: log, error: log };

function options(asked) {
  return {
    endpoints: asked.endpoints[0], sslEnabled: Boolean(asked.tls), namespace: '', logger,
  };
}

function described(message, handle) {
  return {
    handle,
    text: message.body.subarray(0, 64).toString('utf8'),
    size: message.body.length,
    sha256: createHash('sha256').update(message.body).digest('hex'),
    tag: message.tag,
    keys: message.keys,
    properties: Object.fromEntries(message.properties),
    attempt: message.deliveryAttempt,
  };
}

function filter(asked) {
  return asked.sql === undefined ?
    new FilterExpression(asked.tag ?? '*') : new FilterExpression(asked.sql, FilterType.SQL);
}

async function start(asked, client) {
  await client.startup();
  clients.set(asked.name, client);
}

function body(asked) {
  const text = Buffer.from(asked.text, 'utf8');
  return Buffer.alloc(asked.size ?? text.length, text);
}

const commands = {
  async producer(asked) {
    const checker = asked.transaction ?
      {
        check: async half => (half.body.toString('utf8').startsWith('no') ?
          TransactionResolution.ROLLBACK : TransactionResolution.COMMIT),
      } : undefined;
    await start(asked, new Producer({ ...options(asked), topics: [ asked.topic ], checker }));
  },

  async send(asked) {
    const producer = clients.get(asked.producer);
    const message = {
      topic: asked.topic,
      body: body(asked),
      tag: asked.tag,
      keys: asked.keys,
      properties: new Map(Object.entries(asked.properties ?? {})),
      messageGroup: asked.message_group,
      deliveryTimestamp: asked.deliver_at_ms && new Date(asked.deliver_at_ms),
      priority: asked.priority,
    };
    const transaction = asked.transaction ? producer.beginTransaction() : undefined;
    const receipt = await producer.send(message, transaction);
    const told = { message_id: receipt.messageId };
    try {
      if (asked.end === 'commit') await transaction.commit();
      if (asked.end === 'rollback') await transaction.rollback();
    } catch (error) { // the message is sent; its checker decides
      told.end_error = `${error.name}: ${error.message}`;
    }
    return told;
  },

  async push(asked) {
    const consume = message => {
      say({ event: 'message', consumer: asked.name, ...described(message, 0) });
      return message.deliveryAttempt > (asked.fail ?? 0) ?
        ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
    };
    await start(asked, new PushConsumer({
      ...options(asked),
      consumerGroup: asked.group,
      subscriptions: new Map([[ asked.topic, filter(asked) ]]),
      messageListener: { consume },
    }));
  },

  async simple(asked) {
    await start(asked, new SimpleConsumer({
      ...options(asked),
      consumerGroup: asked.group,
      subscriptions: new Map([[ asked.topic, filter(asked) ]]),
      awaitDuration: asked.await_s * 1000,
    }));
  },

  async receive(asked) {
    const consumer = clients.get(asked.consumer);
    const messages = await consumer.receive(asked.count, asked.invisible_s * 1000);
    return {
      messages: messages.map(message => {
        received.set(++handles, message);
        return described(message, handles);
      }),
    };
  },

  async ack(asked) {
    await clients.get(asked.consumer).ack(received.get(asked.handle));
  },

  async change(asked) {
    const message = received.get(asked.handle);
    await clients.get(asked.consumer).changeInvisibleDuration(message, asked.invisible_s * 1000);
  },

  async stop(asked) {
    const client = clients.get(asked.name);
    clients.delete(asked.name);
    await client.shutdown();
  },
};

async function answer(asked) {
  try {
    say({ ...await commands[asked.do](asked), id: asked.id });
  } catch (error) {
    say({ id: asked.id, error: `${error.name}: ${error.message}` });
  }
}

// What the client throws outside of any call would end the process, and every consumer with it.
process.on('unhandledRejection', error => log('unhandled:', error));
readline.createInterface({ input: process.stdin })
  .on('line', line => answer(JSON.parse(line)))
  .on('close', () => process.exit(0)); // the client's timers would keep it
