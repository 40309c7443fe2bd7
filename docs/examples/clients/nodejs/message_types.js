// Messages of each type, with the RocketMQ client for Node.js: sends some, and consumes them.
//
//   npm install rocketmq-client-nodejs@1.0.8
//   dledger topic create transfers --type FIFO --endpoint 127.0.0.1:18281
//   node message_types.js 127.0.0.1:18081 transfers fifo
//
// Beside fifo there are delay, transaction and priority, for topics of these types; sql and dead,
// for NORMAL ones.
'use strict';

const { FilterExpression, Producer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { Code, FilterType, TransactionResolution } =
  require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const PATIENCE_MS = 60_000;
const INVISIBLE_MS = 30_000;
const [ endpoints, topic, type ] = process.argv.slice(2);
const common = { endpoints, namespace: '' }; // one address: where to ask for the others
const group = `${topic}-readers`;
const wait = ms => new Promise(resolve => setTimeout(resolve, ms));

// A refusal (4xxxx, and what the client refuses itself) would be the same the next time.
function isRefused(error) {
  const refused = Math.floor(error.code / 10000) === 4 && error.code !== Code.TOO_MANY_REQUESTS;
  return refused || error instanceof TypeError;
}

// Calls until that does not fail. What failed may have been done all the same: a message that is
// sent again is another one, of which a reader may get both.
async function tried(call, isFinal = isRefused) {
  for (const end = Date.now() + PATIENCE_MS; ; await wait(500)) {
    try {
      return await call();
    } catch (error) {
      if (isFinal(error) || Date.now() > end) throw error;
    }
  }
}

// Returns a client that has started, as it does not while the group, or its topic, is away.
function started(make) {
  return tried(async () => {
    const client = make();
    await client.startup();
    return client;
  }, () => false);
}

function startProducer(more = {}) {
  return started(() => new Producer({ ...common, topics: [ topic ], ...more }));
}

function startConsumer(from, filter) {
  return started(() => new SimpleConsumer({
    ...common,
    consumerGroup: group,
    subscriptions: new Map([[ from, filter ]]),
    awaitDuration: 5000,
  }));
}

// Prints and acknowledges so many messages, one by one, so that their order is seen.
async function consume(from, count, filter = new FilterExpression('*')) {
  const consumer = await startConsumer(from, filter);
  for (const end = Date.now() + PATIENCE_MS; count > 0;) {
    if (Date.now() > end) throw new Error('they did not come');
    for (const message of await tried(() => consumer.receive(1, INVISIBLE_MS))) {
      const due = message.deliveryTimestamp;
      const late = due ? `, ${Date.now() - due.getTime()} ms after its time` : '';
      console.log(message.body.toString() + late);
      await tried(() => consumer.ack(message));
      count--;
    }
  }
}

const types = {
  // Messages of a message group come in the order in which they were sent.
  async fifo() {
    const producer = await startProducer();
    for (let number = 0; number < 5; number++) {
      for (const account of [ 'ada', 'bob' ]) {
        const body = Buffer.from(`${account} ${number}`);
        const message = { topic, body, messageGroup: account };
        await tried(() => producer.send(message)); // before the next one of its group is sent
      }
    }
    await consume(topic, 10);
  },

  // A message comes at its time; one that is recalled before, never.
  async delay() {
    const producer = await startProducer();
    const receipt = await tried(() => producer.send({
      topic, body: Buffer.from('recalled'), deliveryTimestamp: new Date(Date.now() + 5000),
    }));
    // NotFoundException: it has come
    await tried(() => producer.recallMessage(topic, receipt.recallHandle));
    await tried(() => producer.send({
      topic, body: Buffer.from('reminder'), deliveryTimestamp: new Date(Date.now() + 6000),
    }));
    await consume(topic, 1);
  },

  // A message comes if its transaction is committed, by its producer or by its checker.
  async transaction() {
    const paid = new Set(); // a table of your database
    const checker = {
      check: async message => (paid.has(message.messageId) ?
        TransactionResolution.COMMIT : TransactionResolution.ROLLBACK),
    };
    const producer = await startProducer({ checker });
    // One that is tried again is in another transaction.
    const begun = body => tried(async () => {
      const transaction = producer.beginTransaction();
      const receipt = await producer.send({ topic, body: Buffer.from(body) }, transaction);
      return { transaction, messageId: receipt.messageId };
    });
    const leftToTheChecker = error => console.error('it is asked, and says the same:', error);

    const order = await begun('paid');
    paid.add(order.messageId); // commit your own transaction, with the id in it
    await order.transaction.commit().catch(leftToTheChecker);

    const declined = await begun('declined');
    await declined.transaction.rollback().catch(leftToTheChecker);

    const open = await begun('paid, and left open');
    paid.add(open.messageId); // the checker is asked 6 s later
    await consume(topic, 2);
  },

  // Of what waits, the highest priority comes first. This client sends none of priority 0.
  async priority() {
    const producer = await startProducer();
    for (const priority of [ 1, 2, 3 ]) {
      const body = Buffer.from(`priority ${priority}`);
      await tried(() => producer.send({ topic, body, priority }));
    }
    await consume(topic, 3);
  },

  // A consumer gets what matches its filter.
  async sql() {
    const producer = await startProducer();
    for (const price of [ 5, 25, 15, 35, 12 ]) {
      const body = Buffer.from(`price ${price}`);
      const properties = new Map([[ 'price', String(price) ]]);
      await tried(() => producer.send({ topic, body, properties }));
    }
    await consume(topic, 2, new FilterExpression('price BETWEEN 10 AND 20', FilterType.SQL));
  },

  // What is not acknowledged is a dead letter after the attempts that its consumer group has: 17,
  // unless it has other numbers, by dledger group set NAME --max-attempts 2.
  async dead() {
    const producer = await startProducer();
    await tried(() => producer.send({ topic, body: Buffer.from('unreadable') }));
    const consumer = await startConsumer(topic, new FilterExpression('*'));
    while ((await tried(() => consumer.receive(1, 1000))).length > 0) {
      // not acknowledged within a second, it comes again, until it is moved
    }
    await consume(`%DLQ%${group}`, 1);
  },
};

types[type]().then(
  () => process.exit(0),
  error => {
    console.error(error);
    process.exit(1);
  },
);
