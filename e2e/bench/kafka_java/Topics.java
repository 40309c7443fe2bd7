import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.TopicPartition;

/** The two topics of the bench, of three replicas each: records that come singly, and batches. */
final class Topics {
    /** One partition: what waits shares a batch, and there is one sync for all of it. */
    static final String SINGLES = "singles";

    static final String BATCHES = "batches";
    private static final Map<String, Integer> PARTITIONS = Map.of(SINGLES, 1, BATCHES, 8);
    private static final long WHOLE_NS = TimeUnit.SECONDS.toNanos(80);
    private static final long POLL_MS = 100;

    /** A row brings a gigabyte to three disks: beyond this, the next one begins in a new topic. */
    private static final long MOST_BYTES = 512L << 20;

    private final Admin admin;
    private long written;

    Topics(String servers) {
        admin = Admin.create(Map.of("bootstrap.servers", servers));
    }

    static String of(int batch) {
        return batch > 1 ? BATCHES : SINGLES;
    }

    static List<TopicPartition> partitions(String topic) {
        return IntStream.range(0, PARTITIONS.get(topic))
                .mapToObj(number -> new TopicPartition(topic, number))
                .toList();
    }

    /** Makes both as soon as three nodes can, and waits until all replicas are in sync. */
    void create() throws InterruptedException, ExecutionException {
        create(SINGLES);
        create(BATCHES);
    }

    private void create(String topic) throws InterruptedException, ExecutionException {
        NewTopic wanted = new NewTopic(topic, PARTITIONS.get(topic), (short) 3);
        long end = System.nanoTime() + WHOLE_NS;
        boolean made = false;
        while (!made || !whole(topic)) {
            try {
                if (!made) {
                    admin.createTopics(List.of(wanted)).all().get();
                    made = true;
                }
            } catch (ExecutionException notYet) {
                if (System.nanoTime() > end) {
                    throw notYet;
                }
            }
            if (System.nanoTime() > end) {
                throw new IllegalStateException(topic + " is not in sync");
            }
            Thread.sleep(POLL_MS);
        }
    }

    private boolean whole(String topic) throws InterruptedException {
        try {
            TopicDescription told = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            return told.partitions().stream().allMatch(each -> each.isr().size() == 3);
        } catch (ExecutionException notYet) {
            return false;
        }
    }

    /** Replaces the topic of batches by an empty one if it has grown large. */
    void makeRoom(String topic) throws InterruptedException, ExecutionException {
        if (topic.equals(BATCHES) && written > MOST_BYTES) {
            admin.deleteTopics(List.of(topic)).all().get();
            create(topic);
            written = 0;
        }
    }

    void note(String topic, long bytes) {
        if (topic.equals(BATCHES)) {
            written += bytes;
        }
    }
}
