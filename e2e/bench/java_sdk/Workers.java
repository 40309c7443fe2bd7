import java.util.ArrayList;
import java.util.List;

/** Threads that do the same thing again and again until a load's time is over. */
final class Workers {
    /** One call; what it throws is counted as a failure. */
    interface Call {
        void run() throws Exception;
    }

    private Workers() {}

    static void run(int threads, Tally tally, Call call) throws InterruptedException {
        List<Thread> workers = new ArrayList<>();
        for (int number = 0; number < threads; number++) {
            workers.add(new Thread(() -> repeat(tally, call)));
        }
        workers.forEach(Thread::start);
        for (Thread worker : workers) {
            worker.join();
        }
    }

    private static void repeat(Tally tally, Call call) {
        while (tally.isRunning()) {
            try {
                call.run();
            } catch (Exception failed) {
                tally.noteFailure(failed);
            }
        }
    }
}
