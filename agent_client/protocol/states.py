"""The states and reasons that both sides speak. Names are stable: they are stored, sent and shown."""

from enum import IntEnum, StrEnum


class ShardState(StrEnum):
    """Where one shard of a replica stands on its node, as the node's agent observed it."""

    ASSIGNED = "assigned"
    VALIDATING = "validating"
    LAUNCHING = "launching"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    STOP_STUCK = "stop_stuck"
    LOST = "lost"  # said by the server alone: the node has not been heard


#: A shard in one of these runs nothing and holds nothing.
ENDED_SHARD_STATES = frozenset({ShardState.STOPPED, ShardState.FAILED})

#: A shard in one of these may have an engine process on its node.
LIVE_SHARD_STATES = frozenset(ShardState) - ENDED_SHARD_STATES


class FailureCode(StrEnum):
    """Why a shard failed or was refused. The sentence travels beside it; this word is what programs read."""

    POLICY_REFUSED = "policy_refused"  # the node's own file does not allow it
    INVALID_PROFILE = "invalid_profile"
    ENGINE_MISSING = "engine_missing"
    MODEL_MISSING = "model_missing"
    GPU_MISSING = "gpu_missing"
    GPU_BUSY = "gpu_busy"
    NO_PORT = "no_port"
    SPAWN_FAILED = "spawn_failed"
    START_TIMEOUT = "start_timeout"
    EXITED = "exited"
    HUNG = "hung"
    PORT_CLOSED = "port_closed"  # it was ready, and listens no longer while its process lives
    STATE_UNWRITABLE = "state_unwritable"  # the agent can't remember what it would start, so it starts nothing
    STALE_ORDER = "stale_order"  # an order with an epoch below the highest seen
    LOST_TRACK = "lost_track"  # the engine of an earlier agent ended: nobody has its exit code
    AGENT_ERROR = "agent_error"  # a mistake of the agent's own
    SECRET_MISSING = "secret_missing"  # noqa: S105  (a code, not a secret)
    CONFIG_MISSING = "config_missing"  # what preflight finds in a model's folder
    MODEL_INCOMPLETE = "model_incomplete"
    MODEL_UNREADABLE = "model_unreadable"
    WEIGHTS_INCOMPLETE = "weights_incomplete"
    TOKENIZER_MISSING = "tokenizer_missing"
    FLAG_UNKNOWN = "flag_unknown"  # to the version of the engine that this node has
    MEMORY_TAKEN = "memory_taken"  # on the cards, by something else
    SHM_TOO_SMALL = "shm_too_small"
    DISK_FULL = "disk_full"
    FABRIC_DOWN = "fabric_down"


#: Another node may do better; the others are wrong everywhere.
NODE_LOCAL_FAILURES = frozenset(
    {
        FailureCode.POLICY_REFUSED,
        FailureCode.ENGINE_MISSING,
        FailureCode.MODEL_MISSING,
        FailureCode.GPU_MISSING,
        FailureCode.GPU_BUSY,
        FailureCode.NO_PORT,
        FailureCode.STATE_UNWRITABLE,
        FailureCode.SECRET_MISSING,
        FailureCode.CONFIG_MISSING,
        FailureCode.MODEL_INCOMPLETE,
        FailureCode.MODEL_UNREADABLE,
        FailureCode.WEIGHTS_INCOMPLETE,
        FailureCode.TOKENIZER_MISSING,
        FailureCode.FLAG_UNKNOWN,
        FailureCode.MEMORY_TAKEN,
        FailureCode.SHM_TOO_SMALL,
        FailureCode.DISK_FULL,
        FailureCode.FABRIC_DOWN,
    }
)


class CloseCode(IntEnum):
    """WebSocket close codes (RFC 6455 section 7.4.2 leaves 4000-4999 to applications)."""

    NORMAL = 1000
    GOING_AWAY = 1001
    BAD_FRAME = 4400
    BAD_SECRET = 4401
    REFUSED = 4403
    TIMEOUT = 4408
    SUPERSEDED = 4409
    TOO_BIG = 4413  # not 1009: servers may let applications close with 1000 and 3000 to 4999 alone
    VERSION = 4426
    UNAVAILABLE = 4503


#: After these the agent must not hammer: nothing changes until a person acts (it still retries, at the longest pause).
NEEDS_A_PERSON = frozenset({CloseCode.BAD_SECRET, CloseCode.REFUSED, CloseCode.VERSION})
