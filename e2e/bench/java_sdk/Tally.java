import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** What is counted while a load runs; threads share it. Times are those of System.nanoTime(). */
final class Tally {
    private final double seconds;
    private final long end;
    private final List<Long> latencies = new ArrayList<>();
    private int messages;
    private int failures;
    private long newest = System.nanoTime();
    private long longestGap;

    Tally(double seconds) {
        this.seconds = seconds;
        this.end = System.nanoTime() + (long) (seconds * 1e9);
    }

    boolean isRunning() {
        return System.nanoTime() < end;
    }

    /** Counts a message whose latency is known, unless the time is over. */
    synchronized void note(long began) {
        long now = System.nanoTime();
        if (now <= end) {
            latencies.add((now - began) / 1000);
            count(now);
        }
    }

    /** Counts a message, unless the time is over. */
    synchronized void note() {
        long now = System.nanoTime();
        if (now <= end) {
            count(now);
        }
    }

    private void count(long now) {
        messages++;
        longestGap = Math.max(longestGap, now - newest);
        newest = now;
    }

    /** Counts a failed call; why the first one failed goes to the log. */
    synchronized void noteFailure(Throwable cause) {
        if (failures++ == 0) {
            cause.printStackTrace();
        }
    }

    /** Returns for how long nothing was counted, at most; up to now, or to the end. */
    synchronized double longestGapSeconds() {
        return Math.max(longestGap, Math.min(System.nanoTime(), end) - newest) / 1e9;
    }

    synchronized Map<String, Object> answer() {
        return Map.of(
                "requests", messages,
                "failures", failures,
                "seconds", seconds,
                "latencies_us", new ArrayList<>(latencies));
    }
}
