import org.apache.rocketmq.client.apis.message.MessageBuilder;

/** What makes a message one of its type. */
interface Kind {
    Kind NORMAL = (builder, number) -> builder;

    /** Completes the producer's message of this number, which counts from 0. */
    MessageBuilder complete(MessageBuilder builder, long number);

    /** Returns FIFO messages of so many groups in turn. */
    static Kind fifo(int groups) {
        return (builder, number) -> builder.setMessageGroup("group-" + number % groups);
    }
}
