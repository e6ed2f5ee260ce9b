"""The operators' pages: what a person is told and asked, what each button does; no page fetches from outside."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from agent_client.protocol.states import ShardState
from fleet.domain.states import NodeStatus, ReplicaWish, RolloutState
from fleet.models import CatalogModel, Gpu, Node, Replica, Rollout, Shard
from fleet.services import catalog
from tests.fleet.test_reconciler import model, ready_node, tell, tick
from tests.fleet.test_rollouts_and_drains import answer, serving

pytestmark = pytest.mark.django_db


def read(client: Client, row: Any) -> str:
    """A row's page, as text."""
    name = f"admin:fleet_{row._meta.model_name}_change"
    return client.get(reverse(name, args=[row.pk])).content.decode()


def words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def press(client: Client, row: Any, action: str, **given: str) -> str:
    """A button of a row's page; with `confirmed` the one of the page that asks."""
    url = reverse(f"admin:fleet_{row._meta.model_name}_changelist")
    back = reverse(f"admin:fleet_{row._meta.model_name}_change", args=[row.pk])
    data = {"action": action, "_selected_action": str(row.pk), "back": back, **given}
    return client.post(url, data, follow=True).content.decode()


def fails(admission: Any, **fields: Any) -> Replica:
    shard = Shard.objects.get(state=ShardState.ASSIGNED)
    tell(admission, shard, ShardState.FAILED, **fields)
    return Replica.objects.get()


# -- a replica ---------------------------------------------------------------------------------------------------------


def test_a_restart_is_asked_about_with_numbers_and_leads_back(admin_client: Client) -> None:
    admission = serving()
    shard, replica = Shard.objects.get(), Replica.objects.get()
    tell(admission, shard, ShardState.READY, endpoint=shard.endpoint, running=2, waiting=1)
    asked = words(press(admin_client, replica, "restart"))
    assert "ready on gpu-01 GPU 0; 3 requests in it now; no copy of qwen is left ready" in asked
    assert Replica.objects.get().restart_requested is False
    done = press(admin_client, replica, "restart", confirmed="yes", deadline_seconds="30")
    assert "qwen/1: is to be restarted" in done
    assert 'id="live"' in done  # the replica's own page again
    row = Replica.objects.get()
    assert row.restart_requested
    assert row.drain_deadline_at is not None
    assert row.drain_deadline_at - timezone.now() < timedelta(seconds=30)


def test_a_failure_is_told_by_cause_hint_line_and_record(admin_client: Client) -> None:
    admission = ready_node()
    model()
    tick()
    record = {
        "argv": ["vllm", "serve", "/m/<q>"],
        "env": {"VLLM_API_KEY": "(secret)"},
        "head": ["INFO first words"],
        "exception": "ValueError: <no room>",
        "seconds": 61.4,
        "driver": "550.127",
    }
    told = {"code": "kv_cache_too_small", "detail": "cannot run qwen/1: too small", "hint": "lower max_model_len"}
    replica = fails(admission, **told, tail=("Traceback", "ValueError: <no room>"), exit_code=1, record=record)
    page = words(read(admin_client, replica))
    for part in (
        "qwen/1 has failed 1 time in a row",
        "The next try comes by itself",
        "cannot run qwen/1: too small Hint: lower max_model_len kv_cache_too_small",
        "rank 0 on gpu-01, revision 1, agent 0.1.0, it ran for 1 min 1 s, exit code 1",
        "The line that matters: ValueError: &lt;no room&gt;",
        "Its last 2 lines Traceback",
        "The command that ran vllm serve &#x27;/m/&lt;q&gt;&#x27;",
        "driver 550.127",
        "Try again now",
    ):
        assert part in page, part


def test_each_problem_that_an_agent_lists_has_its_own_hint(admin_client: Client) -> None:
    admission = ready_node()
    model()
    tick()
    listed = [
        {"code": "model_missing", "text": "/m/q is not there", "hint": "copy it"},
        {"code": "flag_unknown", "text": "--x is not known", "hint": "remove it"},
    ]
    replica = fails(admission, code="model_missing", detail="cannot start qwen/1", record={"problems": listed})
    page = words(read(admin_client, replica))
    assert "/m/q is not there Hint: copy it model_missing --x is not known Hint: remove it flag_unknown" in page


def test_a_failed_replica_is_tried_again_at_once(admin_client: Client) -> None:
    admission = ready_node()
    model()
    tick()
    replica = fails(admission, code="exited", detail="cannot run")
    assert "is tried again" in press(admin_client, replica, "retry")
    assert Replica.objects.get().next_try_at is None


def test_how_far_a_start_has_come_is_a_bar(admin_client: Client) -> None:
    admission = ready_node()
    model()
    tick()
    tell(admission, Shard.objects.get(), ShardState.LOADING, phase="weights", progress=0.71)
    page = read(admin_client, Replica.objects.get())
    assert "weights 71% <progress" in page
    assert 'value="71"' in page


# -- a node ------------------------------------------------------------------------------------------------------------


def test_a_drain_shows_its_deadline_and_progress_and_can_be_cancelled(admin_client: Client) -> None:
    serving()
    ready_node("gpu-02", cards=1)
    node = Node.objects.get(name="gpu-01")
    asked = words(press(admin_client, node, "drain"))
    assert "1 replica on 1 GPU: qwen/1" in asked
    press(admin_client, node, "drain", confirmed="yes", deadline_seconds="600", reason="fan")
    tick()
    page = words(read(admin_client, node))
    assert "It is being drained: fan." in page
    assert "1 replica still there, 0 gone. What is still there is stopped in" in page
    assert "qwen/2 starting" in page  # the substitute that it waits for
    assert "is no longer drained" in press(admin_client, node, "cancel_drain")
    node.refresh_from_db()
    assert "act-uncordon" in read(admin_client, node)


def test_a_silent_node_says_when_it_counts_as_lost(admin_client: Client) -> None:
    ready_node()
    Node.objects.update(status=NodeStatus.UNREACHABLE, last_seen_at=timezone.now() - timedelta(seconds=200))
    assert "If it stays silent it counts as lost in 1 min" in words(read(admin_client, Node.objects.get()))


def test_a_card_that_is_split_is_no_trouble(admin_client: Client) -> None:
    ready_node(cards=1)
    Gpu.objects.update(placeable=False)
    assert "needs you" not in admin_client.get(reverse("admin:index")).content.decode()
    assert "split into MIG slices" in read(admin_client, Node.objects.get())


# -- rollouts and models -----------------------------------------------------------------------------------------------


def test_a_rollout_is_paused_resumed_and_rolled_back_by_its_buttons(admin_client: Client) -> None:
    admission = serving()
    model(max_model_len=4096)
    tick()
    answer(admission)
    rollout = Rollout.objects.get()
    page = read(admin_client, rollout)
    assert "0 of 1 run revision 2 and are ready." in page
    assert "max_model_len" in page
    assert 'id="act-resume"' not in page
    press(admin_client, rollout, "pause")
    assert Rollout.objects.get().state == RolloutState.PAUSED
    press(admin_client, rollout, "resume")
    assert "0 replicas of 1 run revision 2 and go back to revision 1" in words(
        press(admin_client, rollout, "roll_back")
    )
    assert Rollout.objects.get().state == RolloutState.ROLLING
    press(admin_client, rollout, "roll_back", confirmed="yes")
    assert Rollout.objects.get().state == RolloutState.FAILED
    assert 'id="act-pause"' not in read(admin_client, rollout)


def test_an_older_rollout_leads_nothing(admin_client: Client) -> None:
    serving()
    model(max_model_len=4096)
    model(max_model_len=2048)
    old = Rollout.objects.order_by("pk")[0]
    assert "act-" not in read(admin_client, old)
    assert "a newer rollout has taken its place" in press(admin_client, old, "pause")


def test_a_model_that_serves_can_be_deleted_and_says_what_goes(admin_client: Client) -> None:
    serving()
    row = CatalogModel.objects.get()
    url = reverse("admin:fleet_catalogmodel_delete", args=[row.pk])
    page = words(admin_client.get(url).content.decode())
    assert "1 replica of it is drained and stopped" in page
    assert "requests for qwen are answered with 404" in page
    admin_client.post(url, {"post": "yes"})
    assert Replica.objects.get().wish == ReplicaWish.REMOVE


def test_a_plan_is_shown_without_saving(admin_client: Client) -> None:
    ready_node(cards=2)
    given = {"name": "m", "aliases": "[]", "replicas": 1, "endpoints": "", "_plan": "yes"}
    url = reverse("admin:fleet_catalogmodel_add")
    fits = admin_client.post(url, given | {"profile": '{"engine": "vllm", "model": "/m", "tensor_parallel": 2}'})
    assert "It fits." in fits.content.decode()
    assert "0, 1" in words(fits.content.decode())
    does_not = admin_client.post(url, given | {"profile": '{"engine": "vllm", "model": "/m", "tensor_parallel": 4}'})
    assert "gpu-01 has 2 free h100-sxm-80gb" in does_not.content.decode()
    assert not CatalogModel.objects.exists()


# -- all pages ---------------------------------------------------------------------------------------------------------


def test_after_a_login_without_a_target_comes_the_home_page(admin_user: User) -> None:
    client = Client()
    given = {"username": "admin", "password": "password"}
    assert client.post(reverse("admin:login"), given).headers["Location"] == reverse("admin:index")


def test_who_may_only_look_is_offered_no_button_and_does_nothing(client: Client) -> None:
    serving()
    user = User.objects.create_user("ann", password="x", is_staff=True)
    client.force_login(user)
    node = Node.objects.get()
    page = reverse("admin:fleet_node_change", args=[node.pk])
    assert client.get(page).status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="view_node"))
    assert "act-drain" not in client.get(page).content.decode()
    press(client, node, "cordon")
    assert Node.objects.get().schedulable


def test_a_button_leads_back_to_this_site_alone(admin_client: Client) -> None:
    ready_node()
    data = {"action": "cordon", "_selected_action": str(Node.objects.get().pk), "back": "https://elsewhere.example/"}
    answered = admin_client.post(reverse("admin:fleet_node_changelist"), data)
    assert answered.headers["Location"] == reverse("admin:fleet_node_changelist")


#: What a browser loads by itself.
LOADED = re.compile(r"""<(?:script|img|iframe|source|embed)\b[^>]*\bsrc=["']([^"']+)|<link\b[^>]*\bhref=["']([^"']+)""")


def test_no_page_loads_anything_from_elsewhere(admin_client: Client) -> None:
    serving()
    model(max_model_len=4096)
    tick()
    pages = [reverse("admin:index"), reverse("admin:login"), reverse("admin:password_change")]
    request: Any = admin_client.get(pages[0]).wsgi_request  # type: ignore[attr-defined]
    for table in admin.site._registry:
        name = f"admin:{table._meta.app_label}_{table._meta.model_name}"
        pages.append(reverse(f"{name}_changelist"))
        row = table._default_manager.first()
        pages += [reverse(f"{name}_change", args=[row.pk])] if row is not None else []
        if admin.site._registry[table].has_add_permission(request):
            pages.append(reverse(f"{name}_add"))
    seen = 0
    for page in pages:
        text = admin_client.get(page, follow=True).content.decode()
        found = [one or other for one, other in LOADED.findall(text)]
        seen += len(found)
        assert not [url for url in found if not url.startswith("/") or url.startswith("//")], page
    assert len(pages) > 30
    assert seen > 30 * 5


def test_a_card_says_whose_it_is_and_can_be_drained(admin_client: Client) -> None:
    serving()
    card = Gpu.objects.get(index=0)
    page = words(read(admin_client, card))
    assert "gpu-01 GPU 0 is held by qwen/1 ." in page
    assert "Who had it" in page
    press(admin_client, card, "drain", confirmed="yes", deadline_seconds="60", reason="fan")
    card.refresh_from_db()
    assert card.drain_deadline_at is not None
    assert "It is cordoned: fan." in words(read(admin_client, card))


def test_the_home_page_has_the_buttons_for_those_who_may(admin_client: Client, client: Client) -> None:
    admission = ready_node()
    model()
    tick()
    replica = fails(admission, code="exited", detail="cannot run")
    button = f"act-replica-{replica.pk}-retry"
    assert button in admin_client.get(reverse("admin:index")).content.decode()
    client.force_login(User.objects.create_user("ann", password="x", is_staff=True))
    assert button not in client.get(reverse("admin:index")).content.decode()


def test_a_list_says_of_when_it_is(admin_client: Client) -> None:
    ready_node()
    for name in ("node", "gpu", "replica", "rollout", "catalogmodel", "event"):
        assert 'id="listed"' in admin_client.get(reverse(f"admin:fleet_{name}_changelist")).content.decode()


def test_pages_tell_no_old_news_of_a_rollout(admin_client: Client) -> None:
    admission = serving()
    model(max_model_len=4096)
    tick()
    answer(admission, "unknown_flag", "no such flag")
    tick()
    row, rollout = CatalogModel.objects.get(), Rollout.objects.get()
    its, about = (
        reverse("admin:fleet_catalogmodel_change", args=[row.pk]),
        reverse("admin:fleet_rollout_change", args=[rollout.pk]),
    )
    assert "The rollout to revision 2" in admin_client.get(its).content.decode()
    assert "The catalog keeps the new profile" in admin_client.get(about).content.decode()
    catalog.roll_back(model=row, actor="t")
    assert "The rollout to revision 2" not in admin_client.get(its).content.decode()
    assert "Revision 3 is wished since." in admin_client.get(about).content.decode()


def test_a_silent_node_says_for_how_long_it_is_silent_now(admin_client: Client) -> None:
    admission = ready_node()
    Node.objects.update(
        status=NodeStatus.UNREACHABLE,
        status_reason="silent for 31 s",
        last_seen_at=timezone.now() - timedelta(seconds=61),
    )
    page = admin_client.get(reverse("admin:fleet_node_change", args=[admission.node_id])).content.decode()
    assert re.search(r"gpu-01 has been unreachable for .*, silent for .*1 min", page)
    assert page.count("silent for 31 s") == 1  # the reason of its state, as a field
