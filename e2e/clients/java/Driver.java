import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.Closeable;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Drives the unmodified RocketMQ client for Java: JSON lines in, JSON lines out.
 *
 * <p>e2e/clients/drivers.py has the commands; each runs in a thread of its own.
 */
public final class Driver {
    private static final ClientServiceProvider CLIENT = ClientServiceProvider.loadService();
    private static final PrintStream OUT = System.out;

    private final Map<String, Closeable> clients = new ConcurrentHashMap<>();
    private final Map<Long, MessageView> received = new ConcurrentHashMap<>();
    private final AtomicLong handles = new AtomicLong();

    private Driver() {}

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err); // the client's logging prints
        Driver driver = new Driver();
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonObject asked = JsonParser.parseString(line).getAsJsonObject();
            threads.submit(() -> driver.answer(asked));
        }
        Runtime.getRuntime().halt(0); // the clients' own threads do not end
    }

    private static void say(JsonObject line) {
        byte[] bytes = (line + "\n").getBytes(StandardCharsets.UTF_8);
        synchronized (OUT) {
            OUT.write(bytes, 0, bytes.length);
            OUT.flush();
        }
    }

    private void answer(JsonObject asked) {
        JsonObject told = new JsonObject();
        try {
            told = carriedOut(asked);
        } catch (Throwable error) {
            told.addProperty("error", error.getClass().getSimpleName() + ": " + error.getMessage());
        }
        told.add("id", asked.get("id"));
        say(told);
    }

    private JsonObject carriedOut(JsonObject asked) throws Exception {
        JsonObject told = new JsonObject();
        switch (text(asked, "do")) {
            case "producer" -> clients.put(text(asked, "name"), producer(asked));
            case "send" -> send(asked, told);
            case "push" -> clients.put(text(asked, "name"), push(asked));
            case "simple" -> clients.put(text(asked, "name"), simple(asked));
            case "receive" -> told.add("messages", receive(asked));
            case "ack" -> reader(asked).ack(message(asked));
            case "change" -> reader(asked).changeInvisibleDuration(message(asked), seconds(asked, "invisible_s"));
            case "stop" -> clients.remove(text(asked, "name")).close();
            default -> throw new IllegalArgumentException("the Java client has nothing for " + asked);
        }
        return told;
    }

    private static String text(JsonObject asked, String name) {
        JsonElement value = asked.get(name);
        return value == null || value.isJsonNull() ? null : value.getAsString();
    }

    private static boolean flag(JsonObject asked, String name) {
        return asked.has(name) && asked.get(name).getAsBoolean();
    }

    private static Duration seconds(JsonObject asked, String name) {
        return Duration.ofMillis(Math.round(asked.get(name).getAsDouble() * 1000));
    }

    private SimpleConsumer reader(JsonObject asked) {
        return (SimpleConsumer) clients.get(text(asked, "consumer"));
    }

    private MessageView message(JsonObject asked) {
        return received.get(asked.get("handle").getAsLong());
    }

    private static ClientConfiguration configuration(JsonObject asked) {
        StringBuilder endpoints = new StringBuilder();
        for (JsonElement each : asked.getAsJsonArray("endpoints")) {
            endpoints.append(endpoints.length() == 0 ? "" : ";").append(each.getAsString());
        }
        return ClientConfiguration.newBuilder()
                .setEndpoints(endpoints.toString())
                .enableSsl(flag(asked, "tls"))
                .build();
    }

    private static Producer producer(JsonObject asked) throws Exception {
        ProducerBuilder builder =
                CLIENT.newProducerBuilder()
                        .setClientConfiguration(configuration(asked))
                        .setTopics(text(asked, "topic"));
        if (flag(asked, "transaction")) {
            builder.setTransactionChecker(
                    message ->
                            StandardCharsets.UTF_8.decode(message.getBody()).toString().startsWith("no")
                                    ? TransactionResolution.ROLLBACK
                                    : TransactionResolution.COMMIT);
        }
        return builder.build();
    }

    private static byte[] body(JsonObject asked) {
        byte[] text = text(asked, "text").getBytes(StandardCharsets.UTF_8);
        byte[] body = new byte[asked.has("size") ? asked.get("size").getAsInt() : text.length];
        for (int at = 0; at < body.length; at++) {
            body[at] = text[at % text.length];
        }
        return body;
    }

    private void send(JsonObject asked, JsonObject told) throws Exception {
        MessageBuilder builder =
                CLIENT.newMessageBuilder().setTopic(text(asked, "topic")).setBody(body(asked));
        if (asked.has("tag")) {
            builder.setTag(text(asked, "tag"));
        }
        if (asked.has("keys")) {
            String[] keys = asked.getAsJsonArray("keys").asList().stream()
                    .map(JsonElement::getAsString).toArray(String[]::new);
            builder.setKeys(keys);
        }
        if (asked.has("properties")) {
            for (Map.Entry<String, JsonElement> each : asked.getAsJsonObject("properties").entrySet()) {
                builder.addProperty(each.getKey(), each.getValue().getAsString());
            }
        }
        if (asked.has("message_group")) {
            builder.setMessageGroup(text(asked, "message_group"));
        }
        if (asked.has("deliver_at_ms")) {
            builder.setDeliveryTimestamp(asked.get("deliver_at_ms").getAsLong());
        }
        if (asked.has("priority")) {
            builder.setPriority(asked.get("priority").getAsInt());
        }
        Message message = builder.build();
        Producer producer = (Producer) clients.get(text(asked, "producer"));
        SendReceipt receipt;
        if (flag(asked, "transaction")) {
            Transaction transaction = producer.beginTransaction();
            receipt = producer.send(message, transaction);
            end(transaction, text(asked, "end"), told);
        } else if (flag(asked, "async")) {
            receipt = producer.sendAsync(message).get();
        } else {
            receipt = producer.send(message);
        }
        told.addProperty("message_id", receipt.getMessageId().toString());
    }

    private static void end(Transaction transaction, String end, JsonObject told) {
        try {
            if ("commit".equals(end)) {
                transaction.commit();
            } else if ("rollback".equals(end)) {
                transaction.rollback();
            }
        } catch (Exception error) { // the message is sent; its checker decides
            told.addProperty("end_error", error.getClass().getSimpleName() + ": " + error.getMessage());
        }
    }

    private static Map<String, FilterExpression> subscription(JsonObject asked) {
        FilterExpression filter =
                asked.has("sql")
                        ? new FilterExpression(text(asked, "sql"), FilterExpressionType.SQL92)
                        : new FilterExpression(asked.has("tag") ? text(asked, "tag") : "*");
        return Collections.singletonMap(text(asked, "topic"), filter);
    }

    private static Closeable push(JsonObject asked) throws Exception {
        int fail = asked.has("fail") ? asked.get("fail").getAsInt() : 0;
        return CLIENT.newPushConsumerBuilder()
                .setClientConfiguration(configuration(asked))
                .setConsumerGroup(text(asked, "group"))
                .setSubscriptionExpressions(subscription(asked))
                .setMessageListener(message -> {
                    JsonObject event = described(message, 0);
                    event.addProperty("event", "message");
                    event.add("consumer", asked.get("name"));
                    say(event);
                    return message.getDeliveryAttempt() > fail ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
                })
                .build();
    }

    private static Closeable simple(JsonObject asked) throws Exception {
        return CLIENT.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration(asked))
                .setConsumerGroup(text(asked, "group"))
                .setSubscriptionExpressions(subscription(asked))
                .setAwaitDuration(seconds(asked, "await_s"))
                .build();
    }

    private JsonArray receive(JsonObject asked) throws Exception {
        JsonArray messages = new JsonArray();
        for (MessageView message :
                reader(asked).receive(asked.get("count").getAsInt(), seconds(asked, "invisible_s"))) {
            long handle = handles.incrementAndGet();
            received.put(handle, message);
            messages.add(described(message, handle));
        }
        return messages;
    }

    private static JsonObject described(MessageView message, long handle) {
        ByteBuffer buffer = message.getBody();
        byte[] body = new byte[buffer.remaining()];
        buffer.get(body);
        JsonObject told = new JsonObject();
        told.addProperty("handle", handle);
        told.addProperty("text", new String(Arrays.copyOf(body, Math.min(64, body.length)), StandardCharsets.UTF_8));
        told.addProperty("size", body.length);
        told.addProperty("sha256", digest(body));
        told.addProperty("tag", message.getTag().orElse(null));
        JsonArray keys = new JsonArray();
        message.getKeys().forEach(keys::add);
        told.add("keys", keys);
        JsonObject properties = new JsonObject();
        message.getProperties().forEach(properties::addProperty);
        told.add("properties", properties);
        told.addProperty("attempt", message.getDeliveryAttempt());
        return told;
    }

    private static String digest(byte[] body) {
        try {
            StringBuilder hex = new StringBuilder();
            for (byte each : MessageDigest.getInstance("SHA-256").digest(body)) {
                hex.append(String.format("%02x", each));
            }
            return hex.toString();
        } catch (java.security.NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}
