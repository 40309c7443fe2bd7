import com.alibaba.fastjson.JSONObject;
import io.openmessaging.storage.dledger.client.DLedgerClient;
import io.openmessaging.storage.dledger.protocol.DLedgerResponseCode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Load through DLedger's own client, whose append is one synchronous call a message. */
public final class Client {
    private static final List<Long> acks = new ArrayList<>();
    private static int failures;
    private static volatile boolean writing;
    private static Thread writer;

    private Client() {}

    /** Arguments: group, peers as "n0-host:port;n1-host:port". */
    public static void main(String[] args) throws Exception {
        DLedgerClient client = new DLedgerClient(args[0], args[1]);
        client.startup();
        Requests.serve(
                Map.of(
                        "append", asked -> append(client, asked),
                        "steady", asked -> start(client, asked),
                        "acks", asked -> take(),
                        "stop", asked -> stop()));
        System.exit(0);
    }

    private static Object append(DLedgerClient client, JSONObject asked) {
        byte[] body = Load.body(asked);
        return Load.run(asked, () -> isStored(client, body));
    }

    private static boolean isStored(DLedgerClient client, byte[] body) {
        return client.append(body).getCode() == DLedgerResponseCode.SUCCESS.getCode();
    }

    private static Object start(DLedgerClient client, JSONObject asked) {
        byte[] body = Load.body(asked);
        long pause = (long) (asked.getDoubleValue("pace_s") * 1e9);
        writing = true;
        writer = new Thread(() -> write(client, body, pause));
        writer.start();
        return Map.of("acks_ns", List.of(), "failures", 0);
    }

    private static void write(DLedgerClient client, byte[] body, long pause) {
        while (writing) {
            note(isStored(client, body));
            Load.sleepUntil(System.nanoTime() + pause);
        }
    }

    private static synchronized void note(boolean stored) {
        if (stored) {
            acks.add(System.nanoTime()); // CLOCK_MONOTONIC on Linux, as in the other processes
        } else {
            failures++;
        }
    }

    private static synchronized Object take() {
        Map<String, Object> taken =
                Map.of("acks_ns", new ArrayList<>(acks), "failures", failures);
        acks.clear();
        failures = 0;
        return taken;
    }

    private static Object stop() {
        writing = false;
        Load.join(writer);
        return take();
    }
}
