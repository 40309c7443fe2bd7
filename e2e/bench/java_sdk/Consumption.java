import com.google.gson.JsonObject;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;

/**
 * A push and a simple consumer, each of its own group. Whichever was asked for first stays until it
 * is closed, so that a load can be watched that began before and goes on behind.
 */
final class Consumption {
    private static final int RECEIVE = 32;
    private static final Duration INVISIBLE = Duration.ofSeconds(30);
    private static final Duration AWAIT = Duration.ofSeconds(5); // the least RocketMQ's proxy takes
    private static final double MOST_GAP_SECONDS = 3;

    private final ClientServiceProvider sdk;
    private final ClientConfiguration configuration;
    private final String topic;
    private final AtomicLong pushed = new AtomicLong();
    private final AtomicLong received = new AtomicLong();
    private volatile Tally watching = new Tally(0);
    private PushConsumer push;
    private SimpleConsumer simple;

    Consumption(ClientServiceProvider sdk, ClientConfiguration configuration, String topic) {
        this.sdk = sdk;
        this.configuration = configuration;
        this.topic = topic;
    }

    /** Returns how many messages a mode's group had; those that came again count again. */
    long consumed(String mode) {
        return (mode.equals("push") ? pushed : received).get();
    }

    /** Counts what a push consumer of "window" threads is given, while it goes on. */
    Map<String, Object> push(JsonObject asked) throws Exception {
        if (push == null) {
            push =
                    sdk.newPushConsumerBuilder()
                            .setClientConfiguration(configuration)
                            .setConsumerGroup("bench-push")
                            .setSubscriptionExpressions(subscription())
                            .setConsumptionThreadCount(asked.get("window").getAsInt())
                            .setMessageListener(this::consume)
                            .build();
        }
        Tally tally = new Tally(asked.get("seconds").getAsDouble());
        watching = tally;
        while (tally.isRunning()) {
            Thread.sleep(5);
        }
        return flowing(tally);
    }

    private ConsumeResult consume(MessageView message) {
        pushed.incrementAndGet();
        watching.note();
        return ConsumeResult.SUCCESS;
    }

    /**
     * Receives 32 and acknowledges each, in "window" threads; a thread receives again when all are
     * acknowledged. A message's latency is from the call that brought it to its acknowledgement.
     */
    Map<String, Object> simple(JsonObject asked) throws Exception {
        if (simple == null) {
            simple =
                    sdk.newSimpleConsumerBuilder()
                            .setClientConfiguration(configuration)
                            .setConsumerGroup("bench-simple")
                            .setSubscriptionExpressions(subscription())
                            .setAwaitDuration(AWAIT)
                            .build();
        }
        Tally tally = new Tally(asked.get("seconds").getAsDouble());
        Workers.run(asked.get("window").getAsInt(), tally, () -> receive(tally));
        return flowing(tally);
    }

    private void receive(Tally tally) throws Exception {
        long began = System.nanoTime();
        List<CompletableFuture<Void>> acks = new ArrayList<>();
        for (MessageView message : simple.receive(RECEIVE, INVISIBLE)) {
            received.incrementAndGet();
            acks.add(simple.ackAsync(message).thenRun(() -> tally.note(began)));
        }
        CompletableFuture.allOf(acks.toArray(CompletableFuture[]::new)).join();
    }

    /** Closes what is open. */
    Map<String, Object> close() throws Exception {
        if (push != null) {
            push.close();
            push = null;
        }
        if (simple != null) {
            simple.close();
            simple = null;
        }
        return Map.of();
    }

    private Map<String, FilterExpression> subscription() {
        return Collections.singletonMap(topic, FilterExpression.SUB_ALL);
    }

    /** A rate with a long gap in it would be that of a queue that ran dry. */
    private static Map<String, Object> flowing(Tally tally) {
        double gap = tally.longestGapSeconds();
        Map<String, Object> answer = tally.answer();
        boolean isDry = gap > MOST_GAP_SECONDS && (int) answer.get("failures") == 0;
        return isDry ? Map.of("error", "no message came for " + gap + " s") : answer;
    }
}
