"""`manage.py explain`: true by itself, whether or not anything reconciles."""

from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

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
    assert "qwen: 2 wanted, 2 there" in text
    assert "qwen/1  ready  on gpu-01 GPU 0, 1\n" in text
    assert "qwen/2  pending\n  0 of 1 node fit: gpu-01 has 0 free h100-sxm-80gb, 2 needed" in text
    assert "held by qwen/1" in text
    assert "hint:" in text


def test_before_anything_reconciled_it_says_where_a_copy_would_go() -> None:
    ready_node(cards=1)
    model(replicas=1, gpu_class="h100-sxm-80gb")
    assert explain("qwen") == "qwen: 1 wanted, 0 there\none more copy would go to gpu-01\n"


def test_with_several_nodes_each_has_its_line() -> None:
    ready_node("gpu-01")
    ready_node("gpu-02")
    operations.cordon_node(node=Node.objects.get(name="gpu-02"), reason="fan", actor="ann")
    model(replicas=1, gpu_class="b200-sxm-180gb")
    tick()
    text = explain("qwen")
    assert "    gpu-01 has h100-sxm-80gb, b200-sxm-180gb needed\n" in text
    assert "    gpu-02 is cordoned (fan)\n" in text


def test_an_unknown_model_is_told_with_what_there_is() -> None:
    model()
    with pytest.raises(CommandError, match="cannot explain nope: no such model in the catalog; the catalog has qwen"):
        explain("nope")
