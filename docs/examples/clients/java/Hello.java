// Sends ten messages and consumes them, with the RocketMQ client for Java.
//
//   org.apache.rocketmq:rocketmq-client-java:5.2.0 from Maven Central
//   java -cp 'jars/*' Hello.java '127.0.0.1:18081;127.0.0.1:18082;127.0.0.1:18083' hello

import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;

public final class Hello {
    private static final int MESSAGES = 10;
    private static final int TRIES = 60;

    public static void main(String[] arguments) throws Exception {
        String endpoints = arguments[0];
        String topic = arguments[1];
        ClientServiceProvider client = ClientServiceProvider.loadService();
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
                .setEndpoints(endpoints)
                .enableSsl(false) // it is on by default; leave it on for port 8082
                .build();
        Producer producer = tried(() -> client.newProducerBuilder()
                .setClientConfiguration(configuration)
                .setTopics(topic)
                .build());
        Set<String> bodies = ConcurrentHashMap.newKeySet();
        CountDownLatch complete = new CountDownLatch(MESSAGES);
        AutoCloseable consumer = tried(() -> client.newPushConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(topic + "-readers")
                .setSubscriptionExpressions(
                        Collections.singletonMap(topic, FilterExpression.SUB_ALL))
                .setMessageListener(message -> {
                    String body = StandardCharsets.UTF_8.decode(message.getBody()).toString();
                    System.out.println(body);
                    if (bodies.add(body)) {
                        complete.countDown();
                    }
                    return ConsumeResult.SUCCESS;
                })
                .build());
        for (int number = 0; number < MESSAGES; number++) {
            Message message = client.newMessageBuilder()
                    .setTopic(topic)
                    .setBody(("hello " + number).getBytes(StandardCharsets.UTF_8))
                    .build();
            tried(() -> producer.send(message));
        }
        boolean all = complete.await(60, TimeUnit.SECONDS);
        consumer.close();
        producer.close();
        System.exit(all ? 0 : 1);
    }

    /** Calls until it does not fail, as it does while the group is away; for a minute and more. */
    private static <T> T tried(Callable<T> call) throws Exception {
        for (int attempt = 1; ; attempt++) {
            try {
                return call.call();
            } catch (Exception error) {
                if (attempt == TRIES) {
                    throw error;
                }
                TimeUnit.SECONDS.sleep(1);
            }
        }
    }
}
