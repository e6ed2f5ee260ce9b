"""The model's files: missing, cut short, damaged, or not given to this account."""

from agent_client.engines.causes.row import Cause, row

ROWS: tuple[Cause, ...] = (
    # -- the model's files
    row(
        "model-path-missing",
        r"HFValidationError: Repo id must be in the form .*: '(?P<path>[^']+)'",
        "there is no model folder {path} on the node",
        "copy the model there, or name an existing folder",
        node=True,
    ),
    row(
        "model-path-missing",
        r"failed to open GGUF file '(?P<path>[^']+)' \(No such file",
        "there is no model file {path} on the node",
        "copy the model there, or name an existing file",
        node=True,
    ),
    row(
        "model-path-missing",
        r"cannot start: there is no model file (?P<path>.+)",
        "there is no model file {path} on the node",
        "copy the model there, or name an existing file",
        node=True,
    ),
    row(
        "gated-repo",
        r"Access to model (?P<model>\S+) is restricted",
        "the hub gives {model} only to accounts that were granted access",
        "accept the model's terms and give the node a token: env: {HF_TOKEN: {secret: hf-token}}",
    ),
    row(
        "gated-repo",
        r"GatedRepoError|Cannot access gated repo",
        "the hub gives this model only to accounts that were granted access",
        "accept the model's terms and give the node a token: env: {HF_TOKEN: {secret: hf-token}}",
        rank=2,
    ),
    row(
        "repo-not-found",
        r"(?:RepositoryNotFoundError|RevisionNotFoundError): (?P<what>.+)",
        "the hub has no such model or revision ({what})",
        "check the name; a private model also needs a token",
    ),
    row(
        "hub-unreachable",
        r"LocalEntryNotFoundError: |outgoing traffic has been disabled|couldn't connect to 'https?://[^']+' to load",
        "the model is not in the node's cache and the hub can't be reached",
        "give a path, or let the node reach the hub",
        node=True,
    ),
    row(
        "remote-code-needed",
        r"(?:The repository )?(?P<model>\S{1,300}) contains custom code which must be executed",
        "{model} needs code of its own to be run",
        "if you trust it, add --trust-remote-code to extra_args",
    ),
    row(
        "config-broken",
        r"config file at '(?P<path>[^']+)' is not a valid JSON",
        "{path} is not valid JSON",
        "copy the model's config.json again",
        node=True,
    ),
    row(
        "tokenizer-broken",
        r"Couldn't instantiate the backend tokenizer|Can't load tokenizer for '(?P<path>[^']+)'",
        "the model's tokenizer files are missing or broken",
        "copy tokenizer.json and tokenizer_config.json too, or set --tokenizer",
        node=True,
    ),
    row(
        "safetensors-corrupt",
        r"SafetensorError: (?P<why>.+)",
        "a weight file is damaged ({why})",
        "copy the weights again and compare their sizes and hashes",
        node=True,
    ),
    row(
        "weights-incomplete",
        r"Weight files referenced in index but missing: \{?'?(?P<path>[^'}]+)",
        "the weight file {path} is missing",
        "copy the model again: some of its files did not arrive",
        node=True,
    ),
    row(
        "weights-incomplete",
        r"tensor '(?P<tensor>[^']+)' data is not within the file bounds",
        "the model file ends before its tensor {tensor}",
        "copy the file again: it is cut short",
        node=True,
    ),
    row(
        "weights-incomplete",
        r"Cannot find any model weights with `?(?P<path>[^`]+)`?",
        "there are no weights in {path}",
        "copy the model's *.safetensors files too",
        node=True,
    ),
    row(
        "not-a-model",
        r"(?:invalid magic characters|unsupported GGUF version|failed to read magic)",
        "the model file is no GGUF that this engine can read",
        "name a GGUF file of the version that the engine supports",
    ),
    row(
        "permission-denied",
        r"PermissionError: \[Errno 13\] Permission denied: (?P<path>.+)",
        "the engine may not open {path}",
        "let the agent's user read the model and write the cache folder",
        node=True,
    ),
)
