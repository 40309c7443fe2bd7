import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import kafka.Kafka;
import kafka.tools.StorageTool;

/** One Kafka broker and controller, whose storage is formatted before its first start. */
public final class Node {
    private Node() {}

    /** Arguments: the cluster's id, the node's properties file. */
    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        try (var text = Files.newBufferedReader(Path.of(args[1]))) {
            properties.load(text);
        }
        if (!Files.exists(Path.of(properties.getProperty("log.dirs"), "meta.properties"))) {
            String[] format = {"format", "-t", args[0], "-c", args[1]};
            if (StorageTool.execute(format, System.out) != 0) {
                throw new IllegalStateException("its storage could not be formatted");
            }
        }
        Kafka.main(new String[] {args[1]});
    }
}
