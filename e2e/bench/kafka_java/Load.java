import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Load through Kafka's own clients. A batch is what the producer makes of that many records: they
 * are sent one by one, and <em>window</em> times <em>batch</em> of them are under way.
 */
public final class Load {
    private static final int BATCH_BYTES = 256 << 10;
    private static final int LINGER_MS = 5;
    private static final Duration POLL = Duration.ofMillis(100);
    private static final int BODIES = 256;

    private final String servers;
    private final Topics topics;
    private final Steady steady;

    private Load(String servers) {
        this.servers = servers;
        this.topics = new Topics(servers);
        this.steady = new Steady(() -> producer(1));
    }

    /** Arguments: the servers, comma separated; "create" behind them makes the topics instead. */
    public static void main(String[] args) throws Exception {
        Load load = new Load(args[0]);
        if (args.length > 1 && args[1].equals("create")) {
            load.topics.create();
        } else {
            Requests.serve(
                    Map.of(
                            "append", load::append,
                            "read", load::read,
                            "steady", load.steady::start,
                            "acks", asked -> load.steady.take(),
                            "stop", asked -> load.steady.stop()));
        }
        System.exit(0);
    }

    private KafkaProducer<byte[], byte[]> producer(int batch) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", servers);
        settings.put("acks", "all");
        settings.put("batch.size", BATCH_BYTES);
        settings.put("linger.ms", batch > 1 ? LINGER_MS : 0);
        // More than the 32 MiB by default, so that what is under way is what the window says.
        settings.put("buffer.memory", 128L << 20);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private Object append(JsonNode asked) throws Exception {
        if (asked.get("rate").asDouble() > 0) {
            throw new UnsupportedOperationException("an open loop is not built for Kafka");
        }
        int batch = asked.get("batch").asInt();
        String topic = Topics.of(batch);
        topics.makeRoom(topic);
        byte[][] bodies = bodies(asked.get("size_bytes").asInt());
        List<TopicPartition> partitions = Topics.partitions(topic);
        int window = asked.get("window").asInt() * batch;
        double seconds = asked.get("seconds").asDouble();
        Semaphore free = new Semaphore(window);
        Tally tally = new Tally(batch);
        try (KafkaProducer<byte[], byte[]> producer = producer(batch)) {
            // One to each partition first: in a topic this new, a first batch may be refused and the
            // one behind it taken, after which the retry of the first is out of sequence for good.
            for (TopicPartition each : partitions) {
                producer.send(record(each, bodies[0])).get();
            }
            long end = System.nanoTime() + (long) (seconds * 1e9);
            for (int sent = 0; ; sent++) {
                free.acquire();
                long began = System.nanoTime();
                if (began >= end) {
                    break;
                }
                TopicPartition partition = partitions.get(sent % partitions.size());
                producer.send(
                        record(partition, bodies[sent % BODIES]),
                        (where, failure) -> {
                            free.release();
                            tally.note(began, end, failure);
                        });
            }
        }
        topics.note(topic, (long) tally.records() * bodies[0].length);
        return tally.answer(seconds);
    }

    private static ProducerRecord<byte[], byte[]> record(TopicPartition where, byte[] body) {
        return new ProducerRecord<>(where.topic(), where.partition(), null, body);
    }

    /** Many different ones, so that nothing on the way can compress them. */
    static byte[][] bodies(int size) {
        byte[][] made = new byte[BODIES][size];
        Random random = new Random(1);
        for (byte[] body : made) {
            random.nextBytes(body);
        }
        return made;
    }

    /** A window of readers share the partitions, from their first records to the last of now. */
    private Object read(JsonNode asked) throws Exception {
        int batch = asked.get("batch").asInt();
        int readers = asked.get("window").asInt();
        List<TopicPartition> partitions = Topics.partitions(Topics.of(batch));
        long began = System.nanoTime();
        long end = began + (long) (asked.get("seconds").asDouble() * 1e9);
        long[] found = new long[readers];
        List<Thread> threads = new ArrayList<>();
        for (int reader = 0; reader < readers; reader++) {
            int own = reader;
            List<TopicPartition> share =
                    partitions.stream().filter(each -> each.partition() % readers == own).toList();
            if (!share.isEmpty()) {
                threads.add(new Thread(() -> found[own] = readShare(share, end)));
            }
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        long requests = Arrays.stream(found).sum() / batch;
        return Map.of(
                "requests", requests, "failures", 0, "seconds", seconds, "latencies_us", List.of());
    }

    private long readShare(List<TopicPartition> share, long end) {
        Map<String, Object> settings =
                Map.of("bootstrap.servers", servers, "max.poll.records", 10_000);
        long found = 0;
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(
                        settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(share);
            consumer.seekToBeginning(share);
            Map<TopicPartition, Long> last = consumer.endOffsets(share);
            while (System.nanoTime() < end && !isRead(consumer, last)) {
                found += consumer.poll(POLL).count();
            }
        }
        return found;
    }

    private static boolean isRead(KafkaConsumer<?, ?> consumer, Map<TopicPartition, Long> last) {
        return last.entrySet().stream()
                .allMatch(each -> consumer.position(each.getKey()) >= each.getValue());
    }

    /** What became of the records; each call is one of the producer's own thread. */
    private static final class Tally {
        private final int batch;
        private final List<Long> latencies = new ArrayList<>();
        private int records;
        private int failures;

        Tally(int batch) {
            this.batch = batch;
        }

        synchronized void note(long began, long end, Exception failure) {
            long now = System.nanoTime();
            if (failure != null) {
                failures++;
            } else if (now <= end && records++ % batch == 0) {
                latencies.add((now - began) / 1000); // of one record in a batch, as of others' batches
            }
        }

        synchronized int records() {
            return records;
        }

        synchronized Object answer(double seconds) {
            return Map.of(
                    "requests", records / batch,
                    "failures", failures,
                    "seconds", seconds,
                    "latencies_us", latencies);
        }
    }
}
