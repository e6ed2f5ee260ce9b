"""How much memory of each GPU a model takes, in parts: its share of the weights, the cache of one request, the rest.

weights / (TP x PP) + KV cache + overhead; engines.md section 6. All figures are bytes of the fullest GPU.
"""

from dataclasses import dataclass

from agent_client.profile.model_facts import ModelFacts
from agent_client.profile.parameters import DTYPE_BYTES, GGML_BITS, estimated_weights_bytes, parameters
from agent_client.profile.profile import EngineKind, Profile

MIB = 1024 * 1024
GIB = 1024 * MIB

#: vLLM: prompt tokens of one step, held beside a window; the smallest of its defaults (engine/arg_utils.py).
TOKENS_IN_FLIGHT = 2048
#: The sparse layout of DeepSeek-V3.2 with an fp8 cache (vLLM: flashmla_sparse.py), and its index: a byte for each
#: dimension with a 4-byte scale for 128 (deepseek_v2.py).
MLA_FP8_SPARSE_BYTES = 656
INDEX_SCALE_EACH = 128
#: Reported for one GPU, not computed: CUDA graphs (vllm 17939), activations of a 7B at 4,096 tokens (vllm 13882).
GRAPHS_BYTES = int(0.95 * GIB)
ACTIVATIONS_BYTES = int(1.4 * GIB)
_WIDTH_OF_7B = 4096  # of its hidden state, which activations grow with
#: Both were reported for engines on PyTorch.
_TORCH = (EngineKind.VLLM, EngineKind.SGLANG)
#: Share of a GPU's memory that an engine takes unless told otherwise; SGLang works its own out at start.
DEFAULT_SHARE = {EngineKind.VLLM: 0.92}

_EAGER = ("--enforce-eager", "--disable-cuda-graph")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    name: str
    bytes: int | None  # None: not known
    how: str  # the formula with its numbers

    @property
    def shown(self) -> str:
        return "unknown" if self.bytes is None else f"{self.bytes / GIB:.2f} GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """Of one GPU. `bytes_for` is what one request with that context needs."""

    token_bytes: int  # in layers that attend to everything
    window_token_bytes: int = 0
    window: int = 0
    sequence_bytes: int = 0  # the fixed state of linear layers
    how: str = ""

    def bytes_for(self, context: int) -> int:
        held = min(context, self.window - 1 + TOKENS_IN_FLIGHT) if self.window else 0
        return self.token_bytes * context + self.window_token_bytes * held + self.sequence_bytes

    def most_context(self, room: int) -> int:
        """The longest context of one request in `room` bytes."""
        low, high = 0, 2**31
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.bytes_for(middle) <= room else (low, middle - 1)
        return low


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    parts: tuple[Part, ...]
    cache: KvCache | None
    context: int | None
    share: float | None  # of the GPU's memory, that the engine may use

    @property
    def weights(self) -> int | None:
        return self.parts[0].bytes

    @property
    def least(self) -> int | None:
        """What can't be done without: weights and the cache of one whole request."""
        weights, cache = self.parts[0].bytes, self.parts[1].bytes
        return None if weights is None or cache is None else weights + cache

    @property
    def total(self) -> int | None:
        known = [part.bytes for part in self.parts if part.bytes is not None]
        return sum(known) if len(known) == len(self.parts) else None

    def budget(self, memory_total_mib: int) -> int:
        return int(memory_total_mib * MIB * (self.share or 1.0))


def estimate(profile: Profile, facts: ModelFacts) -> MemoryEstimate:
    """Figures that the files do not give stay unknown; `Part.how` says from what each was made."""
    context = profile.max_model_len or facts.context
    cache = kv_cache(profile, facts)
    one = cache.bytes_for(context) if cache is not None and context is not None else None
    how = cache.how if cache is not None else "the model's layers are not described"
    parts = (
        _weights(profile, facts),
        Part(name="KV cache of one request", bytes=one, how=f"{how}; {context or 'unknown'} tokens"),
        _activations(profile, facts),
        _graphs(profile),
    )
    share = profile.gpu_memory_utilization or DEFAULT_SHARE.get(profile.engine)
    return MemoryEstimate(parts=parts, cache=cache, context=context, share=share)


def _activations(profile: Profile, facts: ModelFacts) -> Part:
    name, how = "activations", "reported for a 7B model at 4,096 tokens"
    if profile.engine not in _TORCH or not profile.gpus_total:
        where = profile.engine if profile.gpus_total else "a CPU"
        return Part(name=name, bytes=None, how=f"no figure is known for {where}")
    if facts.hidden is None or facts.hidden >= _WIDTH_OF_7B:
        return Part(name=name, bytes=ACTIVATIONS_BYTES, how=how)
    size = ACTIVATIONS_BYTES * facts.hidden // _WIDTH_OF_7B
    return Part(
        name=name, bytes=size, how=f"{ACTIVATIONS_BYTES / GIB:.2f} GiB ({how}) x {facts.hidden} / {_WIDTH_OF_7B}"
    )


def _graphs(profile: Profile) -> Part:
    name = "CUDA graphs"
    if not profile.gpus_total or any(arg in _EAGER for arg in profile.extra_args):
        return Part(name=name, bytes=0, how="off" if profile.gpus_total else "it runs on no GPU")
    if profile.engine not in _TORCH:
        return Part(name=name, bytes=None, how=f"no figure is known for {profile.engine}")
    return Part(name=name, bytes=GRAPHS_BYTES, how="reported for one GPU")


def _weights(profile: Profile, facts: ModelFacts) -> Part:
    """engines.md section 6: attention, MLPs and embeddings by TP, layers by PP, experts by EP (TP x DP).

    Quantization or another dtype while loading changes what the files weigh (vLLM: --quantization fp8, --dtype).
    """
    tp, pp, dp = profile.tensor_parallel, profile.pipeline_parallel, profile.data_parallel
    whole, origin = facts.weights_bytes, "files"
    if whole is None:
        whole, origin = estimated_weights_bytes(facts), "estimated from config.json"
    if whole is None:
        return Part(name="weights", bytes=None, how="neither the files' sizes nor all shapes are known")
    whole, change = _loaded(profile, facts, whole)
    count = parameters(facts)
    spread = profile.expert_parallel and dp > 1 and count is not None and count.experts > 0
    if spread and count is not None:
        experts = whole * count.experts_share
        each = (whole - experts) / (tp * pp) + experts / (tp * pp * dp)
        how = f"{whole / GIB:.2f} GiB ({origin}{change}) / (TP {tp} x PP {pp}), experts also / DP {dp}"
    else:
        each, how = whole / (tp * pp), f"{whole / GIB:.2f} GiB ({origin}{change}) / (TP {tp} x PP {pp})"
    return Part(name="weights", bytes=int(each), how=how)


def _loaded(profile: Profile, facts: ModelFacts, size: int) -> tuple[int, str]:
    """What the engine makes of the files: as they are, unless they are plain and the profile asks for another form."""
    if facts.quantization is not None:
        return size, ""
    stored = DTYPE_BYTES.get(facts.dtype or "bfloat16", 2.0)
    asked = profile.dtype or "auto"
    width = DTYPE_BYTES.get(asked, min(stored, 2.0))  # auto: float32 is loaded as a 16-bit type
    count = parameters(facts)
    if profile.quantization in ("fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel"):
        plain = count.embedding / count.total if count is not None else 0.0
        return int(size / stored * (plain * width + (1 - plain))), ", quantized to fp8 while loading"
    if width != stored:
        return int(size / stored * width), f", loaded as {asked if asked != 'auto' else 'a 16-bit type'}"
    return size, ""


def kv_cache(profile: Profile, facts: ModelFacts) -> KvCache | None:
    """Bytes a token on one GPU. None where the layers are not described."""
    tp, pp = profile.tensor_parallel, profile.pipeline_parallel
    if facts.full_layers is None or facts.window_layers is None or facts.linear_layers is None:
        return None
    full, windowed = -(-facts.full_layers // pp), -(-facts.window_layers // pp)  # the fullest stage
    stored = kv_width(profile, facts)
    if stored is None:
        return None
    width, name = stored
    sequence = -(-(facts.state_bytes or 0) // (tp * pp)) if facts.linear_layers else 0
    if facts.mla is not None:
        return _mla_cache(facts, full, width, name)
    if facts.kv_heads is None or facts.head_dim is None:
        return None
    heads = max(1, facts.kv_heads // tp)  # above that they are replicated: nothing saved
    layer = int(2 * heads * facts.head_dim * width)
    how = f"2 x {full} layers x {heads} KV heads x {facts.head_dim} x {width:g} bytes ({name})"
    if windowed and facts.window:
        how += f", {windowed} layers of at most {facts.window} - 1 + {TOKENS_IN_FLIGHT} tokens"
    return KvCache(
        token_bytes=layer * (full + (windowed if not facts.window else 0)),
        window_token_bytes=layer * windowed if facts.window else 0,
        window=facts.window if facts.window and windowed else 0,
        sequence_bytes=sequence,
        how=how + (f", and {sequence / MIB:.1f} MiB of state" if sequence else ""),
    )


def _mla_cache(facts: ModelFacts, layers: int, width: float, name: str) -> KvCache:
    """No factor of 2, and not divided by TP: each rank holds it all (DeepSeek-V3: 61 x 576 x 2 = 70,272 bytes)."""
    assert facts.mla is not None
    row = facts.mla.kv_lora_rank + facts.mla.rope_head_dim
    index = facts.mla.index_head_dim
    bytes_a_layer = int(row * width)
    how = f"{layers} layers x {row} x {width:g} bytes ({name}), on each rank"
    if index is not None:
        if width == 1:
            bytes_a_layer = MLA_FP8_SPARSE_BYTES
            how = f"{layers} layers x {MLA_FP8_SPARSE_BYTES} bytes ({name}), on each rank"
        extra = index + index // INDEX_SCALE_EACH * 4
        bytes_a_layer += extra
        how += f", and {extra} bytes of index"
    return KvCache(token_bytes=layers * bytes_a_layer, how=how)


def kv_width(profile: Profile, facts: ModelFacts) -> tuple[float, str] | None:
    """Bytes of one element and the dtype's name: the profile's, else the checkpoint's for the cache, else its dtype.

    None for forms whose size is not known here.
    """
    asked = (profile.kv_cache_dtype or "auto").lower()
    if asked == "auto" and facts.quantization is not None and facts.quantization.kv_cache:
        asked = facts.quantization.kv_cache
    if asked.startswith("fp8"):
        return 1.0, asked
    if asked in DTYPE_BYTES:
        return DTYPE_BYTES[asked], asked
    if profile.engine is EngineKind.LLAMACPP and asked in GGML_BITS:
        return GGML_BITS[asked] / 8, asked
    if asked != "auto":
        return None
    dtype = profile.dtype if profile.dtype in DTYPE_BYTES else facts.dtype
    if profile.dtype in (None, "auto") and dtype in ("float32", "float"):
        return 2.0, "a 16-bit type"
    return DTYPE_BYTES.get(dtype or "", 2.0), dtype or "bfloat16"
