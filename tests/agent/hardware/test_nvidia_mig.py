"""MIG devices as units: what XML tells, what `-L` tells, and what neither does."""

import re

from agent_client.hardware import nvidia_list, nvidia_xml
from tests.agent.hardware import samples
from tests.agent.hardware.test_nvidia_samples import codes


def test_mig_devices_get_uuid_and_profile_from_the_list() -> None:
    text = samples.text("a100_mig_535.xml")
    parent = "GPU-c7ac1491-def8-8334-e647-cb8f74e69a5d"
    listing = f"GPU 0: NVIDIA A100-SXM4-80GB (UUID: {parent})\n" + "".join(
        f"  MIG 1g.20gb     Device  {i}: (UUID: MIG-0000000{i}-1111-5222-8333-000000000001)\n" for i in range(3)
    )
    found = nvidia_xml.parse(text, listed=nvidia_list.parse(listing))
    card, *units = found.gpus
    assert [unit["index"] for unit in units] == [1, 2, 3, 4]
    assert [unit["placeable"] for unit in units] == [True, True, True, False]  # -L does not list the last
    assert units[0]["uuid"] == "MIG-00000000-1111-5222-8333-000000000001"
    assert units[0]["mig"] == {"profile": "1g.20gb", "parent": parent, "gi": 3, "ci": 0, "device": 0}
    assert (units[0]["memory_used_mib"], units[0]["bus"]) == (12, card["bus"])
    assert not card["placeable"]


def test_a_sick_card_takes_its_mig_devices_with_it_and_a_sick_device_only_itself() -> None:
    text = samples.text("a100_mig_535.xml")
    listing = nvidia_list.parse(
        "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-c7ac1491-def8-8334-e647-cb8f74e69a5d)\n"
        + "".join(f"  MIG 1g.20gb Device {i}: (UUID: MIG-{i})\n" for i in range(4))
    )
    sick = text.replace("<reset_required>No<", "<reset_required>Yes<")
    assert [codes(gpu) for gpu in nvidia_xml.parse(sick, listed=listing).gpus] == [["reset_required"]] * 5
    sick = text.replace("<sram_uncorrectable>0<", "<sram_uncorrectable>1<", 1)  # the first stands in device 0
    found = nvidia_xml.parse(sick, listed=listing).gpus
    assert [codes(gpu) for gpu in found] == [[], ["ecc_uncorrectable"], [], [], []]
    assert [gpu["placeable"] for gpu in found] == [False, False, True, True, True]


def test_processes_belong_to_their_mig_device() -> None:
    process = (
        "<processes><process_info><gpu_instance_id>{}</gpu_instance_id><compute_instance_id>0</compute_instance_id>"
        "<pid>77</pid><type>C</type><process_name>[Not Found]</process_name><used_memory>N/A</used_memory>"
        "</process_info></processes>"
    )
    text = samples.text("a100_mig_535.xml")
    gpus = nvidia_xml.parse(text.replace("<processes />", process.format(5))).gpus
    assert [len(gpu["processes"]) for gpu in gpus] == [0, 0, 0, 1, 0]
    assert gpus[3]["processes"] == [{"pid": 77, "name": None, "user": None, "memory_mib": None, "type": "C"}]
    gpus = nvidia_xml.parse(text.replace("<processes />", process.format(99))).gpus
    assert [len(gpu["processes"]) for gpu in gpus] == [1, 0, 0, 0, 0]


def test_part_of_an_instance_gets_no_guessed_profile() -> None:
    text = samples.text("a100_mig_535.xml").replace("<gpu_instance_id>4<", "<gpu_instance_id>3<")
    profiles = [gpu["mig"]["profile"] for gpu in nvidia_xml.parse(text).gpus[1:]]
    assert profiles == [None, None, "1g.20gb", "1g.20gb"]


def test_mig_without_instances_is_said() -> None:
    text = re.sub(
        r"<mig_devices>.*?</mig_devices>",
        "<mig_devices>None</mig_devices>",
        samples.text("a100_mig_535.xml"),
        flags=re.DOTALL,
    )
    (card,) = nvidia_xml.parse(text).gpus
    assert (codes(card), card["placeable"]) == (["mig_empty"], False)


def test_the_list_of_a_mixed_node() -> None:
    first, second, third = nvidia_list.parse(samples.text("mig_list.txt"))
    assert [(mig.device, mig.profile) for mig in first.migs] == [(0, "3g.40gb"), (1, "1g.10gb"), (2, "1c.3g.40gb")]
    assert second.migs == ()
    assert third.migs[0].uuid == "MIG-GPU-5c1d2e3f-aaaa-bbbb-cccc-000000000003/11/0"
    assert (third.index, third.name) == (2, "NVIDIA A100-SXM4-40GB")


def test_a_line_of_the_list_with_a_strange_profile_still_tells_the_uuid() -> None:
    lines = ("MIG 1g.5gb+me.all", "MIG 1c.2g.24gb+gfx", "MIG 1g.10gb-me", "MIG new-kind", "MIG ")
    (card,) = nvidia_list.parse(
        "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n"
        + "".join(f"  {words}  Device {i}: (UUID: MIG-{i})\n" for i, words in enumerate(lines))
    )
    assert [each.uuid for each in card.migs] == [f"MIG-{i}" for i in range(5)]
    assert [each.profile for each in card.migs] == ["1g.5gb+me.all", "1c.2g.24gb+gfx", "1g.10gb-me", None, None]
