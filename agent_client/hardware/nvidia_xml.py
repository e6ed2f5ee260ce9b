"""`nvidia-smi -q -x` → cards. Pure. Drivers 418 to 595 name things differently; every name is optional.

XML tells no NVLink peers, no compute capability, and no UUID or profile of a MIG device: the last two come from `-L`.
"""

from collections.abc import Iterable
from xml.etree.ElementTree import Element

from agent_client.hardware import mig, readings
from agent_client.hardware.cards import Found, Gpu, HostMemory, Process, Seen, build, domain_id, missing, rack_domains
from agent_client.hardware.health import Figures, problem
from agent_client.hardware.nvidia_list import ListedCard
from agent_client.hardware.xml_tree import XmlError, read

SOURCE = "nvidia-smi"
_ROOT = "nvidia_smi_log"
_ZERO_UUID = "00000000-0000-0000-0000-000000000000"  # of a single node: names no rack
_MOST_CARDS = 256
_THROTTLE = {
    "hw_slowdown": "hw_slowdown",
    "hw_thermal_slowdown": "hw_thermal",
    "hw_power_brake_slowdown": "power_brake",
    "sw_thermal_slowdown": "sw_thermal",
}


def parse(text: str, *, listed: Iterable[ListedCard] = (), host: HostMemory | None = None) -> Found:
    """Never raises: what is no report becomes an error. `listed`: from `nvidia-smi -L`."""
    try:
        root = read(text, _ROOT)
    except XmlError as error:
        return Found(source="unavailable", error=f"cannot read nvidia-smi's XML: {error}")
    elements = root.findall("gpu")[:_MOST_CARDS]
    by_uuid = {card.uuid: card for card in listed}
    gpus: list[Gpu] = []
    units: list[Gpu] = []
    fabrics = {}
    indexes = _indexes(elements, by_uuid)
    for index, element in zip(indexes, elements, strict=True):
        fabric = _fabric(element)
        if fabric:
            fabrics[index] = fabric
        gpu = build(_seen(element, index, fabric), host)
        gpus.append(gpu)
        card = by_uuid.get(gpu["uuid"])
        units += _split(gpu, element, card, first_index=max(indexes) + 1 + len(units))
    return Found(
        source=SOURCE,
        gpus=[*gpus, *units],
        driver=readings.known(root.findtext("driver_version")),
        cuda=_version(root.findtext("cuda_version") or root.findtext("cuda_umd_version")),
        problems=missing(readings.integer(root.findtext("attached_gpus")), len(elements), "nvidia-smi's report"),
        domains=rack_domains(gpus, fabrics),
    )


def _indexes(elements: list[Element], listed: dict[str, ListedCard]) -> list[int]:
    """XML has no index: the place in the report, unless `-L` knows better (a card may be left out of the report)."""
    told = [listed.get(readings.uuid(element.findtext("uuid")) or "") for element in elements]
    indexes = [place if card is None else card.index for place, card in enumerate(told)]
    return indexes if len(set(indexes)) == len(indexes) else list(range(len(elements)))


def _seen(element: Element, index: int, fabric: tuple[str, int] | None) -> Seen:
    uuid, name = element.findtext("uuid"), element.findtext("product_name")
    total = element.findtext("fb_memory_usage/total")
    return Seen(
        index=index,
        uuid=readings.uuid(uuid),
        name=readings.known(name),
        bus=readings.bus(element.findtext("pci/pci_bus_id")) or readings.bus(element.get("id")),
        memory_total_mib=readings.mib(total),
        memory_used_mib=readings.mib(element.findtext("fb_memory_usage/used")),
        memory_reserved_mib=readings.mib(element.findtext("fb_memory_usage/reserved")),
        domain=domain_id(*fabric) if fabric else None,
        fault=_fault(element) or readings.identity_fault((uuid, name, total)),
        figures=_figures(element),
        processes=tuple(process for process, instance in _processes(element) if not (instance and _has_mig(element))),
    )


def _fault(element: Element) -> str | None:
    """A lost card says so in any cell; names of processes are not the card's words."""
    for part in element:
        if part.tag not in ("processes", "accounted_processes", "supported_clocks"):
            for leaf in part.iter():
                if fault := readings.fault(leaf.text):
                    return fault
    return None


def _figures(element: Element) -> Figures:
    def text(path: str) -> str | None:
        return readings.known(element.findtext(path))

    def yes(*paths: str) -> bool | None:
        answers = [readings.yes(element.findtext(path)) for path in paths]
        return True if True in answers else (False if False in answers else None)

    single = readings.integer(element.findtext("retired_pages/multiple_single_bit_retirement/retired_count"))
    double = readings.integer(element.findtext("retired_pages/double_bit_retirement/retired_count"))
    return Figures(
        recovery_action=text("gpu_recovery_action"),
        reset_required=yes("gpu_reset_status/reset_required", "gpu_reset_status/drain_and_reset_recommended"),
        ecc_volatile_uncorrectable=_uncorrectable(element.find("ecc_errors/volatile")),
        ecc_aggregate_uncorrectable=_uncorrectable(element.find("ecc_errors/aggregate")),
        remap_pending=yes("remapped_rows/remapped_row_pending"),
        remap_failed=yes("remapped_rows/remapped_row_failure"),
        remapped_uncorrectable=readings.integer(element.findtext("remapped_rows/remapped_row_unc")),
        unrepairable_memory=yes("ecc_errors/unrepairable_memory"),
        repair_pending=yes("ecc_errors/channel_repair_pending", "ecc_errors/tpc_repair_pending"),
        sram_threshold=yes("ecc_errors/aggregate/sram_threshold_exceeded"),
        retired_pages=readings.total((single, double)),
        retired_double_bit=double,
        retired_pending=yes("retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
        throttled=_throttled(element),
        fabric_state=text("fabric/state"),
        fabric_status=text("fabric/status"),
        fabric_health=text("fabric/health/summary"),
        mig_current=text("mig_mode/current_mig"),
        mig_pending=text("mig_mode/pending_mig"),
    )


def _throttled(element: Element) -> frozenset[str]:
    """`clocks_throttle_reasons` until driver 530, `clocks_event_reasons` since."""
    active = set()
    for group in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for reason in element.findall(f"{group}/*"):
            code = _THROTTLE.get(reason.tag.rpartition("_reason_")[2])
            if code and (reason.text or "").strip().lower() == "active":
                active.add(code)
    return frozenset(active)


def _uncorrectable(group: Element | None) -> int | None:
    """Double-bit up to Volta; SRAM and DRAM since, SRAM split in two from driver 550 on."""
    if group is None:
        return None

    def count(path: str) -> int | None:
        return readings.integer(group.findtext(path))

    double = count("double_bit/total")
    if double is None:
        double = readings.total(readings.integer(part.text) for part in group.findall("double_bit/*"))
    sram = readings.total((count("sram_uncorrectable_parity"), count("sram_uncorrectable_secded")))
    return readings.total((double, count("sram_uncorrectable") if sram is None else sram, count("dram_uncorrectable")))


def _fabric(element: Element) -> tuple[str, int] | None:
    """Cluster and clique of a rack that is up. The clique alone is not unique, a zero UUID means this node only."""
    state, status, cluster = (
        readings.known(element.findtext(f"fabric/{tag}")) for tag in ("state", "status", "clusterUuid")
    )
    clique = readings.integer(element.findtext("fabric/cliqueId"))
    if cluster is None or cluster == _ZERO_UUID or clique is None:
        return None
    up = (state or "").lower() == "completed" and (status or "").lower() == "success"
    return (cluster.lower(), clique) if up else None


def _processes(element: Element) -> list[tuple[Process, tuple[int, int | None] | None]]:
    """Each process with its MIG instance (gi, ci), where it has one."""
    found = []
    for info in element.findall("processes/process_info"):
        process = Process(
            pid=readings.integer(info.findtext("pid")),
            name=readings.process_name(info.findtext("process_name")),
            type=readings.known(info.findtext("type")),
            memory_mib=readings.mib(info.findtext("used_memory")),
        )
        if process == Process(pid=None):
            continue
        gi = readings.integer(info.findtext("gpu_instance_id"))
        ci = readings.integer(info.findtext("compute_instance_id"))
        found.append((process, None if gi is None else (gi, ci)))
    return found


def _has_mig(element: Element) -> bool:
    return (readings.known(element.findtext("mig_mode/current_mig")) or "").lower() == "enabled"


def _split(gpu: Gpu, element: Element, card: ListedCard | None, *, first_index: int) -> list[Gpu]:
    """The card's MIG devices as units, each with its processes."""
    if not _has_mig(element):
        return []
    seen = [_mig(each, number) for number, each in enumerate(element.findall("mig_devices/mig_device"))]
    units = mig.units(gpu, seen, card.migs if card else (), first_index=first_index)
    for process, instance in _processes(element):
        if instance is not None:
            owner = next((u for u in units if (u["mig"]["gi"], u["mig"]["ci"]) == instance), gpu)
            owner["processes"].append(process.to_json())
    if not units:
        gpu["problems"].append(problem("mig_empty", "MIG is on and no instance is made of the card"))
    return units


def _mig(element: Element, number: int) -> mig.SeenMig:
    index = readings.integer(element.findtext("index"))
    return mig.SeenMig(
        device=number if index is None else index,
        gi=readings.integer(element.findtext("gpu_instance_id")),
        ci=readings.integer(element.findtext("compute_instance_id")),
        memory_total_mib=readings.mib(element.findtext("fb_memory_usage/total")),
        memory_used_mib=readings.mib(element.findtext("fb_memory_usage/used")),
        memory_reserved_mib=readings.mib(element.findtext("fb_memory_usage/reserved")),
        sms=readings.integer(element.findtext("device_attributes/shared/multiprocessor_count")),
        ecc_volatile_uncorrectable=readings.integer(
            element.findtext("ecc_error_count/volatile_count/sram_uncorrectable")
        ),
    )


def _version(text: str | None) -> str | None:
    value = readings.known(text)
    return value if value and value.replace(".", "").isdecimal() else None
