import com.google.gson.JsonObject;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * A steady load of numbered FIFO and delayed messages with a push consumer of each, and what became
 * of every message. e2e/bench/typed_judging.py compares them.
 *
 * <p>A message group has one message under way at a time, and goes on with the next one whatever
 * became of the last. Delayed ones are sent at their times, whatever became of those before.
 */
final class Watch {
    private static final int FIFO_THREADS = 20;
    private static final int MOST_UNDER_WAY = 4096;
    private static final String FIFO = "fifo";
    private static final String DELAY = "delay";

    private final ClientServiceProvider sdk;
    private final ClientConfiguration configuration;
    private final Map<String, String> topics;
    private final ConcurrentLinkedQueue<List<Object>> sent = new ConcurrentLinkedQueue<>();
    private final ConcurrentLinkedQueue<List<Object>> got = new ConcurrentLinkedQueue<>();
    private final Map<String, Long> acknowledged = new ConcurrentHashMap<>();
    private final Map<String, Long> awaited = new ConcurrentHashMap<>(); // key -> 1 came, 0 not yet
    private final Semaphore free = new Semaphore(MOST_UNDER_WAY);
    private final List<Thread> senders = new ArrayList<>();
    private final Random random = new Random(1);
    private volatile boolean isSending = true;
    private Producer producer;
    private byte[] filler;

    Watch(ClientServiceProvider sdk, ClientConfiguration configuration, String fifo, String delay) {
        this.sdk = sdk;
        this.configuration = configuration;
        this.topics = Map.of(FIFO, fifo, DELAY, delay);
    }

    /** Begins: "per_s" of each type, FIFO in "groups", delayed by "from_s" to "to_s". */
    Map<String, Object> start(JsonObject asked) throws ClientException {
        filler = new byte[asked.get("size_bytes").getAsInt()];
        random.nextBytes(filler);
        producer =
                sdk.newProducerBuilder()
                        .setClientConfiguration(configuration)
                        .setTopics(topics.values().toArray(String[]::new))
                        .build();
        consume(FIFO);
        consume(DELAY);
        double everyNs = 1e9 / asked.get("per_s").getAsDouble();
        int groups = asked.get("groups").getAsInt();
        for (int first = 0; first < FIFO_THREADS; first++) {
            int number = first;
            long pace = (long) (everyNs * FIFO_THREADS);
            senders.add(new Thread(() -> sendFifo(number, groups, pace)));
        }
        long fromMs = (long) (asked.get("from_s").getAsDouble() * 1000);
        long toMs = (long) (asked.get("to_s").getAsDouble() * 1000);
        senders.add(new Thread(() -> sendDelayed(fromMs, toMs, (long) everyNs)));
        senders.forEach(Thread::start);
        return Map.of();
    }

    private void consume(String type) throws ClientException {
        sdk.newPushConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup("bench-watch-" + type)
                .setSubscriptionExpressions(
                        Collections.singletonMap(topics.get(type), FilterExpression.SUB_ALL))
                .setConsumptionThreadCount(8)
                .setMessageListener(message -> note(type, message))
                .build();
    }

    private ConsumeResult note(String type, MessageView message) {
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        String key = new String(bytes, StandardCharsets.UTF_8).split("\n", 2)[0];
        got.add(List.of(type, key, System.currentTimeMillis(), message.getDeliveryAttempt()));
        awaited.put(type + key, 1L);
        return ConsumeResult.SUCCESS;
    }

    /** Sends for the groups first, first + threads and so on, in turn; none under way meanwhile. */
    private void sendFifo(int first, int groups, long paceNs) {
        long[] numbers = new long[groups];
        long next = System.nanoTime() + first * paceNs / FIFO_THREADS;
        for (int group = first; isSending; group += FIFO_THREADS) {
            group = group < groups ? group : first;
            sleepUntil(next);
            next = Math.max(next + paceNs, System.nanoTime());
            String key = group + " " + numbers[group]++;
            Message message =
                    sdk.newMessageBuilder()
                            .setTopic(topics.get(FIFO))
                            .setBody(body(key))
                            .setMessageGroup("group-" + group)
                            .build();
            try {
                producer.send(message);
                ended(FIFO, key, 0, null);
            } catch (Exception failed) {
                ended(FIFO, key, 0, failed);
            }
        }
    }

    private void sendDelayed(long fromMs, long toMs, long paceNs) {
        long next = System.nanoTime();
        for (long number = 0; isSending; number++, next += paceNs) {
            sleepUntil(next);
            free.acquireUninterruptibly();
            long aheadMs = fromMs + (long) (random.nextDouble() * (toMs - fromMs));
            long dueMs = System.currentTimeMillis() + aheadMs;
            String key = "0 " + number;
            Message message =
                    sdk.newMessageBuilder()
                            .setTopic(topics.get(DELAY))
                            .setBody(body(key))
                            .setDeliveryTimestamp(dueMs)
                            .build();
            producer.sendAsync(message)
                    .whenComplete(
                            (receipt, error) -> {
                                free.release();
                                ended(DELAY, key, dueMs, error);
                            });
        }
    }

    private void ended(String type, String key, long dueMs, Throwable error) {
        String said = error == null ? "" : error.toString();
        sent.add(List.of(type, key, dueMs, System.currentTimeMillis(), said));
        if (error == null) {
            acknowledged.merge(type, 1L, Long::sum);
            awaited.putIfAbsent(type + key, 0L);
        }
    }

    private byte[] body(String key) {
        byte[] head = (key + "\n").getBytes(StandardCharsets.UTF_8);
        byte[] body = filler.clone();
        System.arraycopy(head, 0, body, 0, head.length);
        return body;
    }

    private static void sleepUntil(long atNs) {
        for (long leftNs = atNs - System.nanoTime();
                leftNs > 0;
                leftNs = atNs - System.nanoTime()) {
            LockSupport.parkNanos(leftNs);
        }
    }

    /** Returns how many of each type were acknowledged so far. */
    Map<String, Object> progress() {
        return Map.of(
                FIFO, acknowledged.getOrDefault(FIFO, 0L),
                DELAY, acknowledged.getOrDefault(DELAY, 0L));
    }

    /**
     * Ends the sends; waits until all that was acknowledged has come, at most for "seconds", and
     * for "quiet_s" more, in which something may come again. Returns every send and delivery.
     */
    Map<String, Object> finish(JsonObject asked) throws InterruptedException {
        isSending = false;
        for (Thread sender : senders) {
            sender.join();
        }
        free.acquire(MOST_UNDER_WAY);
        long endNs = System.nanoTime() + (long) (asked.get("seconds").getAsDouble() * 1e9);
        while (awaited.containsValue(0L) && System.nanoTime() < endNs) {
            Thread.sleep(100);
        }
        Thread.sleep((long) (asked.get("quiet_s").getAsDouble() * 1000));
        return Map.of("sent", List.copyOf(sent), "got", List.copyOf(got));
    }
}
