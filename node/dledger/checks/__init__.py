"""What a client may say: names, lengths and words, for every service, door and client alike.

`names` has the rules of names and ids, `messages` those of a message, `packed` those of a body that
says that it is packed, and `resources` those of RocketMQ's form of a name. A client asks them
before it sends, the node again when it arrives, and the state machine for what is in the log.
Numbers are in `common.limits`; what nodes, administrators and configurations say of members and
addresses is checked by `common.words`.
"""
