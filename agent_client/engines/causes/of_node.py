"""Memory, ports, peers, the installation, and who was killed from outside."""

from agent_client.engines.causes.row import Cause, row

ROWS: tuple[Cause, ...] = (
    # -- memory
    row(
        "context-exceeds-cache",
        r"max seq len \((?P<given>\d+)\), \(?(?P<need>[\d.]+ GiB) KV cache is needed.*"
        r"available KV cache memory \((?P<have>[\d.]+ GiB)\)"
        r"(?:.*maximum model length is (?P<most>\d+))?",
        "one request of max_model_len {given} needs {need} of KV cache, {have} are there",
        "set max_model_len to {most} or less, or give the replica more GPUs",
    ),
    row(
        "no-kv-cache-memory",
        r"Error: No available memory for the cache blocks",
        "the weights leave no GPU memory for the KV cache",
        "raise gpu_memory_utilization, lower max_model_len, or use more or larger GPUs",
    ),
    row(
        "no-kv-cache-memory",
        r"Error: Not enough memory\. Please try to increase --mem-fraction-static",
        "the weights leave no GPU memory for the KV cache",
        "raise gpu_memory_utilization, or use more or larger GPUs",
    ),
    row(
        "gpu-memory-taken",
        r"Free memory on device (?:\S+ )?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\).*"
        r"less than desired GPU memory utilization \((?P<share>[\d.]+), (?P<need>[\d.]+) GiB\)",
        "only {free} of {total} GiB are free on the GPU, gpu_memory_utilization {share} needs {need} GiB",
        "see what else uses the card, or lower gpu_memory_utilization",
        node=True,
    ),
    row(
        "cuda-oom",
        r"CUDA out of memory\. Tried to allocate (?P<size>[\d.]+ \w+)\. GPU (?P<gpu>\d+) has a total capacity of "
        r"(?P<total>[\d.]+ \w+) of which (?P<free>[\d.]+ \w+) is free",
        "GPU {gpu} ran out of memory: {size} wanted, {free} of {total} free",
        "lower gpu_memory_utilization, max_model_len or --max-num-seqs, or use more GPUs",
    ),
    row(
        "cuda-oom",
        r"allocating (?P<size>[\d.]+ \w+) on device (?P<gpu>\d+): cudaMalloc failed: out of memory",
        "GPU {gpu} ran out of memory: {size} wanted",
        "use a smaller quantization or more GPUs, or leave layers on the CPU (--n-gpu-layers)",
    ),
    row(
        "cuda-oom",
        r"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY",
        "a GPU ran out of memory",
        "lower gpu_memory_utilization, max_model_len or --max-num-seqs, or use more GPUs",
    ),
    row(
        "host-memory",
        r"DefaultCPUAllocator: can't allocate memory|std::bad_alloc|^MemoryError|"
        r"OSError: \[Errno 12\] Cannot allocate memory",
        "the machine's own memory (not the GPU's) did not suffice",
        "free memory on the node, or use one that has more",
        node=True,
    ),
    row(
        "shm-too-small",
        r"Insufficient space in /dev/shm.*?: (?P<need>\d+ \w+) required, (?P<have>\d+ \w+) free",
        "the shared memory /dev/shm is too small: {need} needed, {have} free",
        "make it larger, for example: mount -o remount,size=16G /dev/shm",
        node=True,
    ),
    row(
        "shm-too-small",
        r"Error while creating shared memory segment (?P<path>\S+) \(size (?P<need>\d+)\)",
        "the shared memory /dev/shm is too small: {need} bytes for {path} did not fit",
        "make it larger, for example: mount -o remount,size=16G /dev/shm",
        node=True,
    ),
    row(
        "disk-full",
        r"\[Errno 28\] No space left on device(?:: '(?P<path>[^']+)')?",
        "a disk of the node is full",
        "free space in the model, cache and temporary folders",
        node=True,
    ),
    row(
        "too-many-open-files",
        r"\[Errno 24\] Too many open files$",
        "the engine ran out of open files",
        "raise the limit: LimitNOFILE=1048576 in the agent's unit",
        node=True,
    ),
    # -- ports and peers
    row(
        "port-in-use",
        r"failed to listen on any local network address\. port: (?P<port>\d+)",
        "port {port} is in use",
        "end what holds it, or give the node another port range",
        chance=True,
    ),
    row(
        "port-in-use",
        r"\[Errno 98\].*[Aa]ddress already in use|bind: Address already in use|"
        r"couldn't bind (?:HTTP )?(?:server )?socket",
        "a port that the engine needs is in use",
        "end what holds it, or give the node another port range",
        chance=True,
    ),
    row(
        "peer-unreachable",
        r"client socket has timed out after (?P<after>\d+ ?ms) while trying to connect to "
        r"\((?P<host>[^,]+), (?P<port>\d+)\)",
        "the head {host} port {port} could not be reached within {after}",
        "let the nodes reach each other on that port, and look at the head's own failure",
        chance=True,
    ),
    row(
        "wrong-interface",
        r"no socket interface found|No interface found with name|Unable to find (?:address|interface) for: ?\S+",
        "the network interface named for NCCL or Gloo is not on this node",
        "set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to an interface that `ip link` shows",
        node=True,
    ),
    row(
        "nccl-timeout",
        r"Watchdog caught collective operation timeout.*OpType=(?P<op>\w+).*?(?:ran for (?P<ran>\d+) milliseconds|$)",
        "GPUs waited for each other in {op} until NCCL gave up after {ran} ms",
        "one rank hangs or the wrong interface is used: set NCCL_SOCKET_IFNAME, check NVLink and InfiniBand",
        chance=True,
    ),
    row(
        "nccl-error",
        r"NCCL error[ :].*|ncclSystemError|ncclRemoteError|ncclUnhandledCudaError",
        "NCCL could not connect the GPUs",
        "run once with env NCCL_DEBUG=INFO: the first WARN line names the reason",
        node=True,
        rank=2,
    ),
    # -- the installation
    row(
        "missing-shared-library",
        r"(?P<name>\blib[\w.+-]{1,100}?\.so[\w.]{0,40}): cannot open shared object file",
        "the engine's installation lacks the library {name}",
        "install it, or set LD_LIBRARY_PATH in the node's policy",
        node=True,
    ),
    row(
        "missing-package",
        r"ModuleNotFoundError: No module named '(?P<name>[^']+)'",
        "the engine's installation lacks the Python package {name}",
        "install it into the engine's environment",
        node=True,
    ),
    row(
        "missing-package",
        r"cannot start: the package (?P<name>\S+) is not installed",  # the programs that come with the agent
        "the engine's installation lacks the Python package {name}",
        "install it into the engine's environment",
        node=True,
    ),
    row(
        "missing-compiler",
        r"Failed to find C compiler|fatal error: Python\.h: No such file|Could not find nvcc",
        "the engine compiles kernels and finds no compiler",
        "install gcc and the Python headers, or add --enforce-eager",
        node=True,
    ),
    # -- killed from outside
    row(
        "killed-oom",
        r"(?:[Ee]xit ?code|exitcode)[:=]? -9\b|\{'\w+': -9\}",
        "a process of the engine was killed, as the kernel does when memory runs out",
        "look at `dmesg` for the OOM killer; free memory on the node, or use one that has more",
        node=True,
        rank=2,
    ),
    row(
        "terminated",
        r"^\[shutdown\] API server: shutdown triggered",  # vLLM's, at SIGTERM and SIGINT; it ends with exit code 0
        "something else on the node told it to end",
        "llmgw did not: look for who signals processes there, as a batch system or an administrator does",
        node=True,
        rank=3,
    ),
    row(
        "engine-process-died",
        r"Engine core proc (?P<name>\S+) died unexpectedly|Rank (?P<rank>\d+) scheduler (?:is dead|died)"
        r"|MPClient: engine core exited unexpectedly",  # vLLM 0.32; its API process then ends with exit code 0
        "a process of the engine ended by itself and said nothing",
        "look at `dmesg` and at the card's health: it was killed or crashed in the driver",
        node=True,
        rank=3,
    ),
)
