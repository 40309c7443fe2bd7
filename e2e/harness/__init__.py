"""What the end-to-end rooms share: each thing has one home here.

On this machine: processes and what they cost (`processes`), free ports (`ports`), real nodes
(`nodes`), a whole ``dledger dev`` group (`dev_group`), the network between nodes (`proxy`), raw
calls of RocketMQ (`rocketmq_calls`). On a cluster: `world`, `s3`, `backups`, and the programs that
run in pods (`workload`, `bookkeeper`), where the modules beside them are not to be had. Everywhere:
waiting (`waiting`), tasks in the background (`tasks`), what became of messages (`sequence`), checks
with their table and exit code (`checks`), commands (`command`).

A script of this folder sees its neighbours as top-level modules: none may be called as a package
that it imports.
"""
