// Messages of each type, with the RocketMQ client for Java: sends some, and consumes them.
//
//   org.apache.rocketmq:rocketmq-client-java:5.2.0 from Maven Central
//   dledger topic create transfers --type FIFO --endpoint 127.0.0.1:18281
//   java -cp 'jars/*' MessageTypes.java 127.0.0.1:18081 transfers fifo
//
// Beside fifo there are delay, transaction and priority, for topics of these types; sql and dead,
// for NORMAL ones.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.java.exception.BadRequestException;
import org.apache.rocketmq.client.java.exception.NotFoundException;
import org.apache.rocketmq.client.java.exception.PayloadTooLargeException;

public final class MessageTypes {
    private static final ClientServiceProvider CLIENT = ClientServiceProvider.loadService();
    private static final long PATIENCE_NS = TimeUnit.MINUTES.toNanos(1);
    private static final Duration INVISIBLE = Duration.ofSeconds(30);

    private final ClientConfiguration configuration;
    private final String topic;
    private final String group;

    private MessageTypes(String endpoints, String topic) {
        // TLS is on by default; leave it on for port 8082
        configuration =
                ClientConfiguration.newBuilder().setEndpoints(endpoints).enableSsl(false).build();
        this.topic = topic;
        group = topic + "-readers";
    }

    public static void main(String[] arguments) {
        try {
            new MessageTypes(arguments[0], arguments[1]).run(arguments[2]);
            System.exit(0);
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1); // the client's threads would keep the program
        }
    }

    private void run(String type) throws Exception {
        switch (type) {
            case "fifo" -> fifo();
            case "delay" -> delay();
            case "transaction" -> transaction();
            case "priority" -> priority();
            case "sql" -> sql();
            case "dead" -> dead();
            default -> throw new IllegalArgumentException(type);
        }
    }

    /** Messages of a message group come in the order in which they were sent. */
    private void fifo() throws Exception {
        Producer producer = producer();
        for (int number = 0; number < 5; number++) {
            for (String account : new String[] {"ada", "bob"}) {
                Message message = message(account + " " + number).setMessageGroup(account).build();
                tried(() -> producer.send(message)); // before the next one of its group is sent
            }
        }
        consume(topic, 10, FilterExpression.SUB_ALL);
    }

    /** A message comes at its time; one that is recalled before, never. */
    private void delay() throws Exception {
        Producer producer = producer();
        long now = System.currentTimeMillis();
        Message recalled = message("recalled").setDeliveryTimestamp(now + 5000).build();
        SendReceipt receipt = tried(() -> producer.send(recalled));
        // NotFoundException: it has come
        tried(() -> producer.recallMessage(topic, receipt.getRecallHandle()));
        Message reminder = message("reminder").setDeliveryTimestamp(now + 6000).build();
        tried(() -> producer.send(reminder));
        consume(topic, 1, FilterExpression.SUB_ALL);
    }

    private record Begun(Transaction transaction, String messageId) {}

    /** A message comes if its transaction is committed, by its producer or by its checker. */
    private void transaction() throws Exception {
        Set<String> paid = ConcurrentHashMap.newKeySet(); // a table of your database
        Producer producer = started(() -> CLIENT.newProducerBuilder()
                .setClientConfiguration(configuration)
                .setTopics(topic)
                .setTransactionChecker(message -> paid.contains(message.getMessageId().toString())
                        ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK)
                .build());

        Begun order = tried(() -> begun(producer, "paid"));
        paid.add(order.messageId()); // commit your own transaction, with the id in it
        try {
            order.transaction().commit();
        } catch (ClientException error) {
            System.err.println("the checker is asked, and says the same: " + error);
        }

        Begun declined = tried(() -> begun(producer, "declined"));
        try {
            declined.transaction().rollback();
        } catch (ClientException error) {
            System.err.println("the checker is asked, and says the same: " + error);
        }

        Begun open = tried(() -> begun(producer, "paid, and left open"));
        paid.add(open.messageId()); // the checker is asked 6 s later
        consume(topic, 2, FilterExpression.SUB_ALL);
    }

    /** Sends a message in a transaction; one that is tried again is in another transaction. */
    private Begun begun(Producer producer, String body) throws ClientException {
        Transaction transaction = producer.beginTransaction();
        SendReceipt receipt = producer.send(message(body).build(), transaction);
        return new Begun(transaction, receipt.getMessageId().toString());
    }

    /** Of what waits, the highest priority comes first. */
    private void priority() throws Exception {
        Producer producer = producer();
        for (int number = 1; number <= 3; number++) {
            Message message = message("priority " + number).setPriority(number).build();
            tried(() -> producer.send(message));
        }
        consume(topic, 3, FilterExpression.SUB_ALL);
    }

    /** A consumer gets what matches its filter. */
    private void sql() throws Exception {
        Producer producer = producer();
        for (int price : new int[] {5, 25, 15, 35, 12}) {
            Message message = message("price " + price).addProperty("price", "" + price).build();
            tried(() -> producer.send(message));
        }
        String sql = "price BETWEEN 10 AND 20";
        consume(topic, 2, new FilterExpression(sql, FilterExpressionType.SQL92));
    }

    /**
     * What is not acknowledged is a dead letter after the attempts that its consumer group has: 17,
     * unless it has other numbers, by dledger group set NAME --max-attempts 2.
     */
    private void dead() throws Exception {
        Producer producer = producer();
        Message message = message("unreadable").build();
        tried(() -> producer.send(message));
        SimpleConsumer consumer = consumer(topic, FilterExpression.SUB_ALL);
        while (!tried(() -> consumer.receive(1, Duration.ofSeconds(1))).isEmpty()) {
            // not acknowledged within a second, it comes again, until it is moved
        }
        consume("%DLQ%" + group, 1, FilterExpression.SUB_ALL);
    }

    private MessageBuilder message(String body) {
        byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
        return CLIENT.newMessageBuilder().setTopic(topic).setBody(bytes);
    }

    private Producer producer() throws Exception {
        return started(() -> CLIENT.newProducerBuilder()
                .setClientConfiguration(configuration)
                .setTopics(topic)
                .build());
    }

    private SimpleConsumer consumer(String topic, FilterExpression filter) throws Exception {
        return started(() -> CLIENT.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(group)
                .setSubscriptionExpressions(Collections.singletonMap(topic, filter))
                .setAwaitDuration(Duration.ofSeconds(5))
                .build());
    }

    /** Prints and acknowledges so many messages, one by one, so that their order is seen. */
    private void consume(String topic, int count, FilterExpression filter) throws Exception {
        SimpleConsumer consumer = consumer(topic, filter);
        long end = System.nanoTime() + PATIENCE_NS;
        for (int got = 0; got < count; ) {
            if (System.nanoTime() > end) {
                throw new TimeoutException("they did not come");
            }
            for (MessageView message : tried(() -> consumer.receive(1, INVISIBLE))) {
                String body = StandardCharsets.UTF_8.decode(message.getBody()).toString();
                String late = message.getDeliveryTimestamp()
                        .map(due -> ", " + (System.currentTimeMillis() - due) + " ms after its time")
                        .orElse("");
                System.out.println(body + late);
                tried(() -> {
                    consumer.ack(message);
                    return null;
                });
                got++;
            }
        }
    }

    /**
     * Calls until that does not fail; a refusal is final, as it would be the same the next time.
     *
     * <p>What failed may have been done all the same: a message that is sent again is another one,
     * of which a reader may get both.
     */
    private static <T> T tried(Callable<T> call) throws Exception {
        return tried(call, false);
    }

    /** Starts a client, which fails while the group, or its topic, is away. */
    private static <T> T started(Callable<T> build) throws Exception {
        return tried(build, true);
    }

    private static <T> T tried(Callable<T> call, boolean alsoRefused) throws Exception {
        long end = System.nanoTime() + PATIENCE_NS;
        while (true) {
            try {
                return call.call();
            } catch (Exception error) {
                boolean refused = error instanceof BadRequestException
                        || error instanceof IllegalArgumentException
                        || error instanceof NotFoundException
                        || error instanceof PayloadTooLargeException;
                if (refused && !alsoRefused || System.nanoTime() > end) {
                    throw error;
                }
                TimeUnit.MILLISECONDS.sleep(500);
            }
        }
    }
}
