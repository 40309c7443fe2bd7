import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/** Requests on standard input, one JSON object a line; e2e/bench/loads.py describes them. */
final class Requests {
    /** Answers one request. */
    interface Mode {
        Map<String, Object> run(JsonObject asked) throws Exception;
    }

    private Requests() {}

    /** Answers until the input ends; what the SDK's logging prints goes to standard error. */
    static void serve(Map<String, Mode> modes) throws IOException {
        PrintStream answers = System.out;
        System.setOut(System.err);
        Gson json = new Gson();
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonObject asked = JsonParser.parseString(line).getAsJsonObject();
            answers.println(json.toJson(answer(modes.get(asked.get("mode").getAsString()), asked)));
            answers.flush();
        }
    }

    private static Map<String, Object> answer(Mode mode, JsonObject asked) {
        try {
            return mode.run(asked);
        } catch (Exception failed) {
            return Map.of("error", failed.toString());
        }
    }
}
