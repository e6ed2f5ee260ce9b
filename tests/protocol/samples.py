"""One of each message; docs/protocol.md shows the same ones."""

from agent_client.protocol.messages import (
    Ack,
    Check,
    Checked,
    Desired,
    DesiredShard,
    Drain,
    Error,
    Goodbye,
    Heartbeat,
    LogChunk,
    Message,
    Ping,
    Pong,
    Refresh,
    Register,
    Registered,
    Report,
    ShardReport,
    ShardSpec,
    ShardStatus,
    Start,
    Stop,
    Sync,
    Tail,
    ToldProblem,
)
from agent_client.protocol.states import ShardState

SHARD = "2f0c6a4e-1b7d-4e0a-9a55-0c1f6f3f7d11/0"
REPORT = ShardReport(
    shard=SHARD, epoch=3, state=ShardState.READY, endpoint="http://10.1.2.7:20000", pids=(4711,), running=2, waiting=0
)
ORDER = DesiredShard(
    shard=SHARD,
    epoch=3,
    spec=ShardSpec(
        replica="qwen/1",
        served_names=("qwen", "default"),
        profile={"engine": "vllm", "model": "/models/qwen", "tensor_parallel": 2},
        gpus=("GPU-5f0c", "GPU-77aa"),
        engine_key="CANARY-engine-key",
    ),
)
SAMPLES: tuple[Message, ...] = (
    Register(
        protocol=1,
        agent_version="0.1.0",
        node_id="gpu-07",
        machine_id="0f3c",
        boot_id="9a1e",
        instance_id="77d0",
        hostname="gpu-07.example.com",
        mgmt_addr="10.1.2.7",
        credential="CANARY-credential",
        inventory={"version": 1, "gpus": []},
        labels={"rack": "r12"},
        engines={"vllm": "0.32.0"},
        shards=(REPORT,),
    ),
    Heartbeat(desired_revision=12),
    Report(shards=(REPORT,), inventory_fingerprint="c0ffee"),
    ShardStatus(report=REPORT),
    Ack(command=5),
    Checked(
        check=2,
        code="engine_missing",
        detail="cannot start qwen at revision 4: the program vllm is not here",
        problems=(
            ToldProblem(
                code="engine_missing",
                text="cannot start qwen at revision 4: the program vllm is not here",
                hint="install it, or name its command in policy.engines of agent.yaml",
            ),
        ),
    ),
    LogChunk(shard=SHARD, epoch=3, lines=("loading", "ready")),
    Goodbye(reason="the agent was asked to stop"),
    Registered(
        session=41,
        node_uid="f3a7",
        server_version="0.1.0",
        heartbeat_seconds=10.0,
        desired=Desired(revision=12, shards=(ORDER,)),
        credential="CANARY-credential",
    ),
    Start(command=5, revision=12, shard=ORDER),
    Stop(command=6, revision=13, shard=SHARD, epoch=3, reason="scaled down"),
    Drain(command=7, revision=14, shard=SHARD, epoch=3, deadline_seconds=600.0),
    Check(check=2, spec=ORDER.spec, replaces=SHARD),
    Sync(desired=Desired(revision=15)),
    Refresh(),
    Tail(shard=SHARD, epoch=3, lines=50),
    Error(code="unknown_type", detail="cannot handle message type 'dance': it is not known here", about="dance"),
    Ping(number=1),
    Pong(number=1),
)
