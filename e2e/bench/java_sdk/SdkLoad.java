import com.google.gson.JsonObject;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;

/**
 * Load through the unmodified RocketMQ client for Java: "sync", "async" (and "append", which is the
 * same), "push" and "simple", and "close" for the consumers. "fill" sends until a mode's group has
 * so many messages before it. e2e/bench/java_sdk.py asks.
 */
public final class SdkLoad {
    private SdkLoad() {}

    /** Arguments: endpoints as "host:port;host:port", topic. */
    public static void main(String[] args) throws Exception {
        ClientServiceProvider sdk = ClientServiceProvider.loadService();
        ClientConfiguration configuration =
                ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(false).build();
        Sends sends = new Sends(sdk, configuration, args[1], Kind.NORMAL);
        Consumption consumption = new Consumption(sdk, configuration, args[1]);
        Requests.serve(
                Map.of(
                        "append", sends::async,
                        "async", sends::async,
                        "sync", sends::sync,
                        "push", consumption::push,
                        "simple", consumption::simple,
                        "close", asked -> consumption.close(),
                        "fill", asked -> fill(sends, consumption, asked)));
        Runtime.getRuntime().halt(0); // the SDK's own threads do not end
    }

    private static Map<String, Object> fill(Sends sends, Consumption consumption, JsonObject asked)
            throws InterruptedException {
        long ahead = sends.acknowledged() - consumption.consumed(asked.get("group").getAsString());
        return sends.async(asked, Math.max(0, asked.get("messages").getAsLong() - ahead)).answer();
    }
}
