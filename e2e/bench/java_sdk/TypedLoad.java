import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;

/**
 * Load of typed messages through the unmodified RocketMQ client for Java: "normal" (and "append",
 * which is the same), "fifo" and "delay" are async sends; "settle" waits for what is due, and says
 * how late it was; "watch", "progress" and "finish" follow every message. e2e/bench/typed_sends.py
 * and typed_failover.py ask.
 */
public final class TypedLoad {
    private static final int MESSAGE_GROUPS = 1000;

    private TypedLoad() {}

    /**
     * Arguments: endpoints as "host:port;host:port", topics of type NORMAL, FIFO and DELAY, and one
     * more of FIFO and of DELAY to be watched.
     */
    public static void main(String[] args) throws Exception {
        ClientServiceProvider sdk = ClientServiceProvider.loadService();
        ClientConfiguration configuration =
                ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(false).build();
        Sends normal = new Sends(sdk, configuration, args[1], Kind.NORMAL);
        Sends fifo = new Sends(sdk, configuration, args[2], Kind.fifo(MESSAGE_GROUPS));
        DelayedSends delayed = new DelayedSends(sdk, configuration, args[3]);
        Watch watch = new Watch(sdk, configuration, args[4], args[5]);
        Requests.serve(
                Map.of(
                        "append", normal::async,
                        "normal", normal::async,
                        "fifo", fifo::async,
                        "delay", delayed::async,
                        "settle", asked -> delayed.settle(),
                        "watch", watch::start,
                        "progress", asked -> watch.progress(),
                        "finish", watch::finish));
        Runtime.getRuntime().halt(0); // the SDK's own threads do not end
    }
}
