import com.google.gson.JsonObject;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.producer.Producer;

/** One producer, and how many of its messages were acknowledged. */
final class Sends {
    private final ClientServiceProvider sdk;
    private final String topic;
    private final Kind kind;
    private final Producer producer;
    private final AtomicLong made = new AtomicLong();
    private final AtomicLong acknowledged = new AtomicLong();

    Sends(ClientServiceProvider sdk, ClientConfiguration configuration, String topic, Kind kind)
            throws ClientException {
        this.sdk = sdk;
        this.topic = topic;
        this.kind = kind;
        this.producer =
                sdk.newProducerBuilder()
                        .setClientConfiguration(configuration)
                        .setTopics(topic)
                        .build();
    }

    long acknowledged() {
        return acknowledged.get();
    }

    /** Sends from "window" threads, each waiting for its answer. */
    Map<String, Object> sync(JsonObject asked) throws InterruptedException {
        byte[] body = body(asked);
        Tally tally = new Tally(asked.get("seconds").getAsDouble());
        Workers.run(
                asked.get("window").getAsInt(),
                tally,
                () -> {
                    long began = System.nanoTime();
                    producer.send(message(body));
                    acknowledged.incrementAndGet();
                    tally.note(began);
                });
        return tally.answer();
    }

    /** Sends from one thread, "window" under way at once. */
    Map<String, Object> async(JsonObject asked) throws InterruptedException {
        return async(asked, Long.MAX_VALUE).answer();
    }

    /** Does the same until so many were sent, if that comes first. */
    Tally async(JsonObject asked, long most) throws InterruptedException {
        byte[] body = body(asked);
        int window = asked.get("window").getAsInt();
        Tally tally = new Tally(asked.get("seconds").getAsDouble());
        Semaphore free = new Semaphore(window);
        for (long sent = 0; sent < most && tally.isRunning(); sent++) {
            free.acquire();
            long began = System.nanoTime();
            producer.sendAsync(message(body))
                    .whenComplete((receipt, error) -> ended(free, tally, began, error));
        }
        free.acquire(window);
        return tally;
    }

    private void ended(Semaphore free, Tally tally, long began, Throwable error) {
        free.release();
        if (error == null) {
            acknowledged.incrementAndGet();
            tally.note(began);
        } else {
            tally.noteFailure(error);
        }
    }

    private Message message(byte[] body) {
        MessageBuilder builder = sdk.newMessageBuilder().setTopic(topic).setBody(body);
        return kind.complete(builder, made.getAndIncrement()).build();
    }

    private static byte[] body(JsonObject asked) {
        byte[] body = new byte[asked.get("size_bytes").getAsInt()];
        new Random(1).nextBytes(body);
        return body;
    }
}
