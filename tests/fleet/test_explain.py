"""`manage.py explain`: true by itself, whether or not anything reconciles."""

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone

from fleet.domain.states import NodeStatus
from fleet.models import Node
from fleet.services import operations
from tests.fleet.test_reconciler import make_ready, model, ready_node, tick

pytestmark = pytest.mark.django_db


def explain(name: str) -> str:
    out = StringIO()
    call_command("explain", name, stdout=out)
    return out.getvalue()


def test_a_copy_that_runs_and_one_that_does_not_fit() -> None:
    admission = ready_node(cards=2)
    model(replicas=2, gpu_class="h100-sxm-80gb", tensor_parallel=2)
    tick()
    make_ready(admission)
    text = explain("qwen")
    assert "qwen: 2 wanted, 1 ready, 1 pending\n" in text
    assert "qwen/1  ready  on gpu-01 GPU 0, 1\n" in text
    assert "qwen/2  pending\n  0 of 1 node fit: gpu-01 has 0 free h100-sxm-80gb, 2 needed" in text
    assert "held by qwen/1" in text
    assert "hint:" in text


def test_before_anything_reconciled_it_says_where_a_copy_would_go() -> None:
    ready_node(cards=1)
    model(replicas=1, gpu_class="h100-sxm-80gb")
    assert explain("qwen") == "qwen: 1 wanted, none there\none more copy would go to gpu-01\n"


def test_with_several_nodes_each_has_its_line() -> None:
    ready_node("gpu-01", cards=1)
    ready_node("gpu-02", cards=2)
    operations.cordon_node(node=Node.objects.get(name="gpu-02"), reason="fan", actor="ann")
    model(replicas=1, gpu_class="h100-sxm-80gb", tensor_parallel=2)
    tick()
    text = explain("qwen")
    assert "    gpu-01 has 1 free h100-sxm-80gb, 2 needed\n" in text
    assert "    gpu-02 is cordoned (fan)\n" in text


def test_a_hint_is_of_nodes_that_could_serve_at_all() -> None:
    """Uncordoning a node that can't run the engine, or has no such card, would help nobody."""
    ready_node("gpu-01")
    ready_node("gpu-02")
    operations.cordon_node(node=Node.objects.get(name="gpu-02"), reason="fan", actor="ann")
    Node.objects.filter(name="gpu-02").update(engines={"llamacpp": ""})
    model(replicas=1, gpu_class="h100-sxm-80gb", pipeline_parallel=8)
    tick()
    text = explain("qwen")
    assert "    gpu-02 cannot run vllm (its engines: llamacpp)\n" in text
    assert "hint: free cards, lower pipeline_parallel, or add a node\n" in text
    Node.objects.filter(name="gpu-02").update(engines={"vllm": ""})
    assert "    gpu-02 has 2 h100-sxm-80gb, 8 needed\n" in explain("qwen")
    Node.objects.update(engines={"llamacpp": ""})
    assert "hint: install the engine on a node, or allow it in the node's policy\n" in explain("qwen")


def test_an_unknown_model_is_told_with_what_there_is() -> None:
    model()
    with pytest.raises(CommandError, match="cannot explain nope: no such model in the catalog; the catalog has qwen"):
        explain("nope")


def test_another_copy_would_run_what_the_others_do_and_not_what_has_failed() -> None:
    admission = ready_node(cards=2)
    model(gpu_class="h100-sxm-80gb")
    tick()
    make_ready(admission)
    model(gpu_class="h100-sxm-80gb", tensor_parallel=16)
    text = explain("qwen")
    assert "revision 2 is wished, revision 1 runs" in text
    assert text.endswith("one more copy would go to gpu-01\n")


def test_what_was_last_known_of_a_silent_node_is_told_as_that() -> None:
    admission = ready_node(cards=1)
    model(gpu_class="h100-sxm-80gb")
    tick()
    make_ready(admission)
    assert "qwen/1  ready  on gpu-01 GPU 0\n" in explain("qwen")
    ago = timezone.now() - timedelta(seconds=47)
    Node.objects.update(status=NodeStatus.UNREACHABLE, last_seen_at=ago)
    assert "qwen/1  ready  on gpu-01 GPU 0 (silent for 47 s)\n" in explain("qwen")


def test_nothing_that_somebody_named_moves_the_cursor() -> None:
    ready_node(cards=1)
    model(gpu_class="h100-sxm-80gb", node_selector={"\x1b]0;pwn\x07": "a\u202eb"})
    text = explain("qwen")
    assert r"\x1b]0;pwn\x07" in text
    assert r"a\u202eb" in text
    assert text.replace("\n", "").isprintable()
    with pytest.raises(CommandError):
        explain("\x1b[31m")
