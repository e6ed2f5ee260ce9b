"""The REST API: reads by serializer; each verb calls one service."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.viewsets import GenericViewSet, ViewSet

from agent_client.profile import API_VERBS
from fleet import clock, snapshots
from fleet.api.serializers import (
    CordonRequest,
    DeadlineRequest,
    DrainRequest,
    EventSerializer,
    GpuDrainRequest,
    NodeSerializer,
    NoFields,
    PlanRequest,
    ReplicaSerializer,
    RolloutSerializer,
    show_ledger,
    show_plan,
)
from fleet.domain.states import ReplicaWish
from fleet.models import CatalogModel, Event, Gpu, Node, Replica, Rollout
from fleet.services import catalog, explanations, liveness, operations, rollouts

ENTRY = OpenApiTypes.OBJECT
#: In an address. Control characters stand in no name: such an address is nowhere.
MODEL_NAME = "[^?#\\x00-\\x1f]+"
NODE_NAME = "[^/\\x00-\\x1f]+"


@extend_schema_view(
    list=extend_schema(operation_id="models_list", responses=ENTRY),
    create=extend_schema(request=ENTRY, responses={201: ENTRY}),
    retrieve=extend_schema(responses=ENTRY),
    update=extend_schema(request=ENTRY, responses=ENTRY),
    partial_update=extend_schema(request=ENTRY, responses=ENTRY),
    destroy=extend_schema(responses={204: None}),
)
class ModelViewSet(ViewSet):
    """Catalog entries, in the shape of the catalog file."""

    # Names may hold slashes; what ends in a verb is the verb's.
    lookup_value_regex = MODEL_NAME + "".join(f"(?<!/{verb})" for verb in API_VERBS)

    def list(self, request: Request) -> Response:
        return Response({"results": catalog.export_catalog()["models"]})

    def create(self, request: Request) -> Response:
        entry = catalog.read_entry(request.data)
        catalog.save_entry(entry, actor=request.user.get_username(), new=True)
        return Response(entry.to_dict(), status=201)

    def retrieve(self, request: Request, pk: str) -> Response:
        return Response(self._one(pk))

    def update(self, request: Request, pk: str) -> Response:
        """The whole entry, which is made where there is none."""
        entry = catalog.read_entry(_named(request, pk))
        catalog.save_entry(entry, actor=request.user.get_username())
        return Response(entry.to_dict())

    def partial_update(self, request: Request, pk: str) -> Response:
        """What shall be different (RFC 7396): mappings are merged, null takes a field away."""
        return Response(catalog.change_entry(pk, _named(request, pk), actor=request.user.get_username()).to_dict())

    def destroy(self, request: Request, pk: str) -> Response:
        catalog.delete_model(pk, actor=request.user.get_username())
        return Response(status=204)

    @extend_schema(responses=RolloutSerializer)
    @action(detail=True, methods=["get"])
    def rollout(self, request: Request, pk: str) -> Response:
        """The newest rollout."""
        found = Rollout.objects.filter(model__name=pk).prefetch_related("checks__node").first()
        if found is None:
            raise NotFound(f"cannot find a rollout of {pk}: there has been none")
        return Response(RolloutSerializer(found).data)

    @extend_schema(request=None, responses=RolloutSerializer)
    @action(detail=True, methods=["post"])
    def pause(self, request: Request, pk: str) -> Response:
        _checked(NoFields, request)
        rollouts.pause(model=self._row(pk), actor=request.user.get_username())
        return self.rollout(request, pk)

    @extend_schema(request=None, responses=RolloutSerializer)
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, pk: str) -> Response:
        _checked(NoFields, request)
        rollouts.resume(model=self._row(pk), actor=request.user.get_username())
        return self.rollout(request, pk)

    @extend_schema(request=None, responses={200: RolloutSerializer, 204: None})
    @action(detail=True, methods=["post"])
    def rollback(self, request: Request, pk: str) -> Response:
        """Break the rollout off, or after a finished one go back to the profile before. 204: no engine is touched."""
        _checked(NoFields, request)
        catalog.roll_back(model=self._row(pk), actor=request.user.get_username())
        row = self._row(pk)
        if not Rollout.objects.filter(model=row, target=row.revision).exists():
            return Response(status=204)
        return self.rollout(request, pk)

    @extend_schema(request=ENTRY, responses=ENTRY)
    @action(detail=True, methods=["post"])
    def plan(self, request: Request, pk: str) -> Response:
        """Where one more copy would go, or why nowhere and what would help; changes nothing.

        Body: empty for the stored profile; a profile, alone or as `profile` beside the model's `model_config`.
        """
        body = request.data
        if wrapped := bool(body.keys() & {"profile", "model_config"}):
            _checked(PlanRequest, request)
        draft = body.get("profile") if wrapped else (body or None)
        return Response(show_plan(explanations.plan(pk, draft=draft, config=body.get("model_config"))))

    def _row(self, name: str) -> CatalogModel:
        row = CatalogModel.objects.filter(name=name, leaving=False).first()
        if row is None:
            raise NotFound(f"cannot find {name}: there is no such model")
        return row

    def _one(self, name: str) -> dict[str, Any]:
        for entry in catalog.export_catalog()["models"]:
            if entry["name"] == name:
                return dict(entry)
        raise NotFound(f"cannot find {name}: there is no such model")


class NodeViewSet(ListModelMixin, RetrieveModelMixin, GenericViewSet[Node]):
    queryset = Node.objects.prefetch_related("gpus__claims__shard__replica__model", "shards__replica__model")
    serializer_class = NodeSerializer
    lookup_field = "name"
    lookup_value_regex = NODE_NAME
    filterset_fields = ["status", "schedulable"]

    @extend_schema(request=CordonRequest)
    @action(detail=True, methods=["post"])
    def cordon(self, request: Request, name: str) -> Response:
        reason = _checked(CordonRequest, request)["reason"]
        operations.cordon_node(node=self.get_object(), reason=reason, actor=request.user.get_username())
        return Response(NodeSerializer(self.get_object()).data)

    @action(detail=True, methods=["post"])
    def uncordon(self, request: Request, name: str) -> Response:
        _checked(NoFields, request)
        operations.uncordon_node(node=self.get_object(), actor=request.user.get_username())
        return Response(NodeSerializer(self.get_object()).data)

    @extend_schema(request=DrainRequest)
    @action(detail=True, methods=["post"])
    def drain(self, request: Request, name: str) -> Response:
        given = _checked(DrainRequest, request)
        operations.drain_node(
            node=self.get_object(),
            deadline_seconds=given.get("deadline_seconds", operations.NODE_DRAIN_SECONDS),
            reason=given["reason"],
            actor=request.user.get_username(),
            now=clock.now(),
        )
        return Response(NodeSerializer(self.get_object()).data)

    @extend_schema(request=None)
    @action(detail=True, methods=["post"], url_path="cancel-drain")
    def cancel_drain(self, request: Request, name: str) -> Response:
        _checked(NoFields, request)
        operations.cancel_drain(node=self.get_object(), actor=request.user.get_username())
        return Response(NodeSerializer(self.get_object()).data)

    @extend_schema(request=GpuDrainRequest)
    @action(detail=True, methods=["post"], url_path="drain-gpu")
    def drain_gpu(self, request: Request, name: str) -> Response:
        given = _checked(GpuDrainRequest, request)
        gpu = Gpu.objects.select_related("node").filter(node=self.get_object(), uuid=given["uuid"]).first()
        if gpu is None:
            raise NotFound(f"cannot drain {given['uuid']}: {name} has no such GPU")
        operations.drain_gpu(
            gpu=gpu,
            deadline_seconds=given.get("deadline_seconds", operations.NODE_DRAIN_SECONDS),
            reason=given["reason"],
            actor=request.user.get_username(),
            now=clock.now(),
        )
        return Response(NodeSerializer(self.get_object()).data)

    @extend_schema(request=None, responses=OpenApiTypes.OBJECT)
    @action(detail=False, methods=["post"], url_path="accept-losses")
    def accept_losses(self, request: Request) -> Response:
        """While evictions are held: the nodes that are silent now may be declared lost."""
        _checked(NoFields, request)
        return Response({"accepted": liveness.accept_losses(actor=request.user.get_username())})

    @extend_schema(responses=ENTRY)
    @action(detail=True, methods=["get"])
    def ledger(self, request: Request, name: str) -> Response:
        """Each card and who holds it."""
        return Response({"node": name, "gpus": show_ledger(snapshots.load(node=self.get_object().pk))})


class ReplicaViewSet(ListModelMixin, RetrieveModelMixin, GenericViewSet[Replica]):
    queryset = Replica.objects.select_related("model").prefetch_related("shards__node")
    serializer_class = ReplicaSerializer
    lookup_field = "uid"
    filterset_fields = ["state", "wish", "model__name"]

    @action(detail=True, methods=["post"])
    def stop(self, request: Request, uid: str) -> Response:
        """At once; `drain` lets requests end."""
        _checked(NoFields, request)
        actor = request.user.get_username()
        operations.set_wish(replica=self.get_object(), wish=ReplicaWish.STOP, actor=actor, now=clock.now())
        return Response(ReplicaSerializer(self.get_object()).data)

    @action(detail=True, methods=["post"])
    def run(self, request: Request, uid: str) -> Response:
        _checked(NoFields, request)
        actor = request.user.get_username()
        operations.set_wish(replica=self.get_object(), wish=ReplicaWish.RUN, actor=actor, now=clock.now())
        return Response(ReplicaSerializer(self.get_object()).data)

    @extend_schema(request=DeadlineRequest)
    @action(detail=True, methods=["post"])
    def drain(self, request: Request, uid: str) -> Response:
        """Nothing new for it; it stops with its last request, or at the deadline."""
        operations.drain_replica(
            replica=self.get_object(),
            deadline_seconds=_checked(DeadlineRequest, request).get("deadline_seconds"),
            actor=request.user.get_username(),
            now=clock.now(),
        )
        return Response(ReplicaSerializer(self.get_object()).data)

    @extend_schema(request=DeadlineRequest)
    @action(detail=True, methods=["post"])
    def restart(self, request: Request, uid: str) -> Response:
        operations.restart_replica(
            replica=self.get_object(),
            actor=request.user.get_username(),
            now=clock.now(),
            drain_seconds=_checked(DeadlineRequest, request).get("deadline_seconds", 0.0),
        )
        return Response(ReplicaSerializer(self.get_object()).data)


def _named(request: Request, name: str) -> dict[str, Any]:
    """The body, of the model that the address names."""
    if request.data.get("name", name) != name:
        raise ValidationError({"name": f"a model can't be renamed: leave it out, or give {name}"})
    return {**request.data, "name": name}


def _checked(kind: type[Serializer[Any]], request: Request) -> dict[str, Any]:
    given = kind(data=request.data)
    given.is_valid(raise_exception=True)
    return dict(given.validated_data)


class EventViewSet(ListModelMixin, GenericViewSet[Event]):
    queryset = Event.objects.select_related("node", "replica__model")
    serializer_class = EventSerializer
    filterset_fields = ["kind", "severity", "node__name"]
