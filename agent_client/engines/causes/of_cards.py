"""Cards and drivers."""

from agent_client.engines.causes.row import Cause, row

ROWS: tuple[Cause, ...] = (
    # -- cards and drivers
    row(
        "fabric-manager-down",
        r"Error 802: system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY",
        "the GPUs' NVSwitch fabric is not ready (CUDA error 802)",
        "start nvidia-fabricmanager in the driver's own version",
        node=True,
    ),
    row(
        "driver-too-old",
        r"NVIDIA driver on your system is too old \(found version (?P<have>\d+)\)",
        "the NVIDIA driver is too old for this engine (it speaks CUDA {have})",
        "install a newer driver, or an engine built for an older CUDA",
        node=True,
    ),
    row(
        "driver-too-old",
        r"CUDA driver version is insufficient for CUDA runtime version|"
        r"forward compatibility was attempted on non supported HW",
        "the NVIDIA driver is too old for this engine",
        "install a newer driver, or an engine built for an older CUDA",
        node=True,
    ),
    row(
        "driver-mismatch",
        r"Driver/library version mismatch",
        "the NVIDIA driver was updated but its old kernel module is still loaded",
        "reboot the node, or reload the nvidia modules",
        node=True,
    ),
    row(
        "gpu-lost",
        r"GPU (?:is lost|has fallen off the bus)|Unable to determine the device handle",
        "a GPU has fallen off the bus",
        "reset or reboot the node; if it comes back, have the card looked at",
        node=True,
    ),
    row(
        "gpu-ecc-error",
        r"uncorrectable (?:NVLink|ECC) error",
        "a GPU reported an uncorrectable error",
        "reset the card; if it comes back, have it replaced",
        node=True,
    ),
    row(
        "gpu-busy",
        r"CUDA-capable device\(s\) is/are busy or unavailable",
        "a GPU is in exclusive mode and another process holds it",
        "end that process, or set compute mode to default",
        node=True,
    ),
    row(
        "illegal-memory-access",
        r"an illegal memory access was encountered|unspecified launch failure|device-side assert triggered",
        "a GPU kernel of the engine crashed",
        "try another version of the engine or --enforce-eager; if only this card does it, test the card",
        chance=True,
    ),
    row(
        "gpu-uuid-unsupported",
        r"invalid literal for int\(\) with base 10: '(?P<uuid>(?:GPU|MIG)-[^']*)'",
        "this version of the engine does not take GPUs by UUID ({uuid})",
        "upgrade it to vLLM 0.32 or newer",
        node=True,
    ),
    row(
        "no-gpu",
        r"No CUDA GPUs are available|no CUDA-capable device is detected|Found no NVIDIA driver on your system",
        "the engine sees no GPU",
        "check nvidia-smi as the agent's user",
        node=True,
    ),
    row(
        "no-gpu",
        r"Failed to infer device type",
        "the engine sees no GPU",
        "check nvidia-smi as the agent's user",
        node=True,
        rank=2,
    ),
)
