import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;

/** A window of threads that call for a while, each waiting for its answer before the next call. */
final class Load {
    /** One call; false when it failed. */
    interface Call {
        boolean run() throws Exception;
    }

    private Load() {}

    /** Runs the load that was asked for: closed loop, or at a rate, counted from the due time. */
    static Object run(JSONObject asked, Call call) {
        int window = asked.getIntValue("window");
        double seconds = asked.getDoubleValue("seconds");
        double rate = asked.getDoubleValue("rate");
        long began = System.nanoTime();
        long end = began + (long) (seconds * 1e9);
        AtomicLong next = new AtomicLong();
        AtomicLong failures = new AtomicLong();
        List<List<Long>> latencies = new ArrayList<>();
        List<Thread> workers = new ArrayList<>();
        for (int worker = 0; worker < window; worker++) {
            List<Long> own = new ArrayList<>();
            latencies.add(own);
            workers.add(new Thread(() -> work(call, began, end, rate, next, failures, own)));
        }
        workers.forEach(Thread::start);
        workers.forEach(Load::join);
        List<Long> all = new ArrayList<>();
        latencies.forEach(all::addAll);
        return Map.of(
                "requests", all.size(),
                "failures", failures.get(),
                "seconds", seconds,
                "latencies_us", all);
    }

    private static void work(
            Call call,
            long began,
            long end,
            double rate,
            AtomicLong next,
            AtomicLong failures,
            List<Long> latencies) {
        while (true) {
            long number = next.getAndIncrement();
            long due = rate > 0 ? began + (long) (number * 1e9 / rate) : System.nanoTime();
            if (due >= end) {
                return;
            }
            sleepUntil(due);
            if (!succeeded(call)) {
                failures.incrementAndGet();
            } else if (rate > 0 || System.nanoTime() <= end) {
                latencies.add((System.nanoTime() - due) / 1000);
            }
        }
    }

    static boolean succeeded(Call call) {
        try {
            return call.run();
        } catch (Exception failed) {
            return false;
        }
    }

    static void sleepUntil(long due) {
        long left = due - System.nanoTime();
        if (left > 0) {
            try {
                Thread.sleep(left / 1_000_000, (int) (left % 1_000_000));
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
        }
    }

    static void join(Thread thread) {
        try {
            thread.join();
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    static byte[] body(JSONObject asked) {
        byte[] body = new byte[asked.getIntValue("size_bytes")];
        new Random(1).nextBytes(body);
        return body;
    }
}
