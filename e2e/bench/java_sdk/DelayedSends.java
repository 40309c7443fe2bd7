import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;

/**
 * Sends messages that are due some seconds ahead. One in a hundred has a tag, and a consumer takes
 * these alone: so it is seen whether they come in time, at next to no cost beside the sends.
 */
final class DelayedSends {
    private static final long AHEAD_MS = 5_000;
    private static final int SAMPLED = 100; // one of so many
    private static final String TAG = "sample";
    private static final String DUE = "due";
    private static final long QUIET_MS = 60_000;

    private final Sends sends;
    private final AtomicLong newestDueMs = new AtomicLong();
    private final AtomicLong sampled = new AtomicLong();
    private final Set<String> seen = new HashSet<>();
    private List<Long> lateMs = new ArrayList<>();

    DelayedSends(ClientServiceProvider sdk, ClientConfiguration configuration, String topic)
            throws ClientException {
        sends = new Sends(sdk, configuration, topic, this::complete);
        sdk.newPushConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup("bench-sample")
                .setSubscriptionExpressions(
                        Collections.singletonMap(topic, new FilterExpression(TAG)))
                .setMessageListener(this::consume)
                .build();
    }

    private MessageBuilder complete(MessageBuilder builder, long number) {
        long dueMs = System.currentTimeMillis() + AHEAD_MS;
        newestDueMs.accumulateAndGet(dueMs, Math::max);
        builder.setDeliveryTimestamp(dueMs);
        if (number % SAMPLED == 0) {
            sampled.incrementAndGet();
            builder.setTag(TAG).addProperty(DUE, Long.toString(dueMs));
        }
        return builder;
    }

    private synchronized ConsumeResult consume(MessageView message) {
        if (seen.add(message.getMessageId().toString())) {
            long dueMs = Long.parseLong(message.getProperties().get(DUE));
            lateMs.add(System.currentTimeMillis() - dueMs);
        }
        return ConsumeResult.SUCCESS;
    }

    Map<String, Object> async(JsonObject asked) throws InterruptedException {
        return sends.async(asked);
    }

    /**
     * Waits until all that is sampled has come, or for a minute; returns how late each was that
     * came since the last call, and how many are missing.
     */
    Map<String, Object> settle() throws InterruptedException {
        long endMs = newestDueMs.get() + QUIET_MS;
        while (missing() > 0 && System.currentTimeMillis() < endMs) {
            Thread.sleep(50);
        }
        while (System.currentTimeMillis() < newestDueMs.get()) {
            Thread.sleep(50);
        }
        return taken();
    }

    private synchronized long missing() {
        return sampled.get() - seen.size();
    }

    private synchronized Map<String, Object> taken() {
        List<Long> late = lateMs;
        lateMs = new ArrayList<>();
        return Map.of("late_ms", late, "missing", missing());
    }
}
