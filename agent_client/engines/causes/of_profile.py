"""The profile or the model does not go with the engine: wrong on every node until someone changes it."""

from agent_client.engines.causes.row import Cause, row

ROWS: tuple[Cause, ...] = (
    # -- the command line
    row(
        "unknown-flag",
        r"error: unrecognized arguments: (?P<flag>.+)",
        "the installed engine does not know {flag}",
        "take the argument out, or spell it as this version's --help does",
    ),
    row(
        "unknown-flag",
        r"^error: invalid argument: (?P<flag>\S+)",
        "the installed engine does not know {flag}",
        "take the argument out, or spell it as this version's --help does",
    ),
    row(
        "bad-flag-value",
        r"error: argument (?P<flag>[^:]+): (?P<why>(?:invalid|expected|ignored explicit|not allowed).*)",
        "the argument {flag} has a value that the engine refuses ({why})",
        "see this version's --help for the values that it takes",
    ),
    row(
        "bad-flag-value",
        r'^error while handling argument "(?P<flag>[^"]+)": (?P<why>.+)',
        "the argument {flag} has a value that the engine refuses ({why})",
        "see this version's --help for the values that it takes",
    ),
    # -- what the engine can't do with this model
    row(
        "architecture-unsupported",
        r"Model architectures \[(?P<name>[^\]]*)\] (?:are not supported|failed to be inspected)",
        "the installed engine does not support the architecture {name}",
        "install a version that does, or use another engine",
    ),
    row(
        "architecture-unsupported",
        r"unknown model architecture: '(?P<name>[^']+)'",
        "the installed engine does not support the architecture {name}",
        "install a version that does, or use another engine",
    ),
    row(
        "quantization-unsupported",
        r"Unknown quantization method: (?P<name>\S+?)\.",
        "the installed engine does not know the quantization {name}",
        "install a version that does, or take another copy of the model",
    ),
    row(
        "capability-too-low",
        r"quantization method (?P<name>\S+) is not supported for the current GPU.*Minimum capability: (?P<need>\d+).*"
        r"Current capability: (?P<have>\d+)",
        "quantization {name} needs compute capability {need}, this GPU has {have}",
        "choose a newer GPU class or another quantization",
    ),
    row(
        "dtype-unsupported",
        r"Bfloat16 is only supported on GPUs with compute capability of at least (?P<need>[\d.]+)\. "
        r"Your (?P<card>.+?) GPU has compute capability (?P<have>[\d.]+?)\.?(?: |$)",
        "bfloat16 needs compute capability {need}, {card} has {have}",
        "set dtype: float16, or leave it out",
    ),
    row(
        "kernel-image-missing",
        r"no kernel image is available for execution on the device",
        "the engine was not built for this card's compute capability",
        "install a build for it, or choose another GPU class",
        node=True,
    ),
    row(
        "pipeline-unsupported",
        r"[Pp]ipeline parallelism is not supported for (?:this model|(?P<name>\S+))",
        "the engine can't split this model by pipeline parallel",
        "set pipeline_parallel: 1",
    ),
    row(
        "context-exceeds-model",
        r"User-specified max_model_len \((?P<given>\d+)\) is greater than the derived max_model_len "
        r"\((?P<most>[^)]*?)[ )]",
        "max_model_len {given} is above the model's ({most})",
        "lower max_model_len",
    ),
    # -- shapes
    row(
        "heads-not-divisible",
        r"Total number of attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<tp>\d+)\)",
        "{heads} attention heads do not divide by tensor_parallel {tp}",
        "choose a tensor_parallel that divides {heads}",
    ),
    row(
        "vocabulary-not-divisible",
        r"AssertionError: (?P<size>\d+) is not divisible by (?P<tp>\d+)",
        "the vocabulary padded to {size} does not divide by tensor_parallel {tp}",
        "choose a tensor_parallel that is a power of two",
        near="vocab_parallel_embedding",
    ),
    row(
        "heads-not-divisible",
        r"AssertionError: (?P<size>\d+) is not divisible by (?P<tp>\d+)",
        "{size} (heads, or a layer's width) does not divide by tensor_parallel {tp}",
        "choose a tensor_parallel that divides {size}",
    ),
    row(
        "kv-heads-not-divisible",
        r"assert .*total_num_(?:kv_)?heads",
        "the model's heads or KV heads do not go with tensor_parallel",
        "choose a tensor_parallel that divides the KV heads, or a multiple of their number",
        source=True,
        rank=2,
    ),
    row(
        "block-not-divisible",
        r"(?P<what>[Ww]eight (?:in|out)put_\w+ = \d+|The (?:in|out)put_size of .*? = \d+) is not divisible by "
        r".*?(?P<block>\d+)",
        "a layer's share on one GPU does not divide by the quantization's block ({what}, block {block})",
        "lower tensor_parallel",
    ),
    row(
        "block-not-divisible",
        r"not divisible by\s+min_thread_[nk] = (?P<block>\d+)",
        "a layer's share on one GPU does not divide by the quantization kernel's {block}",
        "lower tensor_parallel",
    ),
    row(
        "nodes-not-divisible",
        r"`--nnodes (?P<nodes>\d+)` must evenly divide the total world size \((?P<world>\d+)\)",
        "a world of {world} GPUs does not divide by {nodes} nodes",
        "choose nodes that divide tensor_parallel x pipeline_parallel x data_parallel",
    ),
    row(
        "nodes-not-divisible",
        r"tp_size must be divisible by number of nodes",
        "the GPUs do not divide by the number of nodes",
        "choose nodes that divide tensor_parallel x pipeline_parallel",
    ),
    row(
        "experts-not-divisible",
        r"(?:[Nn]umber of experts|num_experts).*(?:divisible|divide)",
        "the model's experts do not divide by the expert-parallel size",
        "choose a tensor_parallel that divides the experts, or expert_parallel: false",
    ),
)
