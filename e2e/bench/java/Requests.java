import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.function.Function;

/** Requests on standard input, one JSON object a line; e2e/bench/loads.py describes them. */
final class Requests {
    private Requests() {}

    /** Answers until the input ends; whatever else is printed goes to standard error. */
    static void serve(Map<String, Function<JSONObject, Object>> modes) throws IOException {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JSONObject asked = JSON.parseObject(line);
            answers.println(JSON.toJSONString(modes.get(asked.getString("mode")).apply(asked)));
            answers.flush();
        }
    }
}
