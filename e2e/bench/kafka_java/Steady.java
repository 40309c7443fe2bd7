import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.function.Supplier;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.InterruptException;

/** One writer, one record at a time, that notes when each was acknowledged. */
final class Steady {
    private final Supplier<KafkaProducer<byte[], byte[]>> producers;
    private final List<Long> acks = new ArrayList<>();
    private int failures;
    private Thread writer;

    Steady(Supplier<KafkaProducer<byte[], byte[]>> producers) {
        this.producers = producers;
    }

    Object start(JsonNode asked) {
        byte[] body = Load.bodies(asked.get("size_bytes").asInt())[0];
        long pauseMs = Math.round(asked.get("pace_s").asDouble() * 1000);
        writer = new Thread(() -> write(body, pauseMs));
        writer.start();
        return Map.of("acks_ns", List.of(), "failures", 0);
    }

    /** Ends when it is interrupted, also in the middle of a record that nobody answers. */
    private void write(byte[] body, long pauseMs) {
        KafkaProducer<byte[], byte[]> producer = producers.get();
        try {
            while (!Thread.interrupted()) {
                try {
                    producer.send(new ProducerRecord<>(Topics.SINGLES, 0, null, body)).get();
                    note(true);
                } catch (ExecutionException failed) {
                    note(false);
                }
                Thread.sleep(pauseMs);
            }
        } catch (InterruptedException | InterruptException ended) {
            Thread.currentThread().interrupt();
        } finally {
            producer.close(Duration.ZERO);
        }
    }

    private synchronized void note(boolean stored) {
        if (stored) {
            acks.add(System.nanoTime()); // CLOCK_MONOTONIC on Linux, as in the other processes
        } else {
            failures++;
        }
    }

    synchronized Object take() {
        Map<String, Object> taken =
                Map.of("acks_ns", new ArrayList<>(acks), "failures", failures);
        acks.clear();
        failures = 0;
        return taken;
    }

    Object stop() throws InterruptedException {
        writer.interrupt();
        writer.join();
        return take();
    }
}
