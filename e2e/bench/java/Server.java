import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.DLedgerServer;
import io.openmessaging.storage.dledger.MemberState;
import io.openmessaging.storage.dledger.protocol.AppendEntryRequest;
import io.openmessaging.storage.dledger.protocol.AppendEntryResponse;
import io.openmessaging.storage.dledger.protocol.BatchAppendEntryRequest;
import io.openmessaging.storage.dledger.protocol.DLedgerResponseCode;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** One DLedger server; writes its role to role.json and can make load inside itself. */
public final class Server {
    private static final long POLL_MS = 20;
    private static final long ANSWER_S = 5;

    private Server() {}

    /** Arguments: group, own id, peers, directory, heartbeat in ms, whether to push batches. */
    public static void main(String[] args) throws Exception {
        DLedgerConfig config =
                new DLedgerConfig().group(args[0]).selfId(args[1]).peers(args[2]).storeBaseDir(args[3]);
        config.setHeartBeatTimeIntervalMs(Integer.parseInt(args[4]));
        config.setEnableBatchPush(Boolean.parseBoolean(args[5]));
        // The disk is also filled by others; full is what the bench itself looks after.
        config.setDiskSpaceRatioToForceClean(0.95f);
        DLedgerServer server = new DLedgerServer(config);
        server.startup();
        Runtime.getRuntime().addShutdownHook(new Thread(server::shutdown));
        Thread teller = new Thread(() -> tell(server.getMemberState(), Path.of(args[3])));
        teller.setDaemon(true);
        teller.start();
        Requests.serve(Map.of("append", asked -> append(server, asked)));
        System.exit(0);
    }

    /** Appends inside the leader: the only way to give DLedger a batch, its wire has none. */
    private static Object append(DLedgerServer server, JSONObject asked) {
        byte[] body = Load.body(asked);
        List<byte[]> bodies = Collections.nCopies(asked.getIntValue("batch"), body);
        return Load.run(asked, () -> isStored(server.handleAppend(request(server, bodies))));
    }

    private static AppendEntryRequest request(DLedgerServer server, List<byte[]> bodies) {
        BatchAppendEntryRequest request = new BatchAppendEntryRequest();
        request.setGroup(server.getMemberState().getGroup());
        request.setRemoteId(server.getMemberState().getSelfId());
        request.setBatchMsgs(bodies);
        return request;
    }

    private static boolean isStored(CompletableFuture<AppendEntryResponse> answer)
            throws Exception {
        return answer.get(ANSWER_S, TimeUnit.SECONDS).getCode()
                == DLedgerResponseCode.SUCCESS.getCode();
    }

    private static void tell(MemberState state, Path directory) {
        String told = "";
        while (true) {
            Map<String, Object> role =
                    Map.of("role", state.getRole().name(), "term", state.currTerm());
            String text = JSON.toJSONString(role);
            if (!text.equals(told)) {
                write(directory, text);
                told = text;
            }
            Load.sleepUntil(System.nanoTime() + POLL_MS * 1_000_000);
        }
    }

    private static void write(Path directory, String text) {
        try {
            Path fresh = directory.resolve("role.tmp");
            Files.write(fresh, text.getBytes(StandardCharsets.UTF_8));
            Files.move(fresh, directory.resolve("role.json"), StandardCopyOption.REPLACE_EXISTING);
        } catch (IOException failed) {
            throw new IllegalStateException(failed);
        }
    }
}
