import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/** Requests on standard input, one JSON object a line; e2e/bench/loads.py describes them. */
final class Requests {
    /** What answers one mode's requests. */
    interface Mode {
        Object answer(JsonNode asked) throws Exception;
    }

    private static final ObjectMapper JSON = new ObjectMapper();

    private Requests() {}

    /** Answers until the input ends; whatever else is printed goes to standard error. */
    static void serve(Map<String, Mode> modes) throws IOException {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.println(JSON.writeValueAsString(answer(modes, JSON.readTree(line))));
            answers.flush();
        }
    }

    private static Object answer(Map<String, Mode> modes, JsonNode asked) {
        try {
            return modes.get(asked.get("mode").asText()).answer(asked);
        } catch (Exception failed) {
            return Map.of("error", failed.toString());
        }
    }
}
