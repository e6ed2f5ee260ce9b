"""The REST API: reads by serializer; each verb calls one service."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet, ViewSet

from fleet import snapshots
from fleet.api.serializers import EventSerializer, NodeSerializer, ReplicaSerializer, show_ledger, show_plan
from fleet.domain.states import ReplicaWish
from fleet.models import Event, Node, Replica
from fleet.services import catalog, explanations, operations

ENTRY = OpenApiTypes.OBJECT


@extend_schema_view(
    list=extend_schema(operation_id="models_list", responses=ENTRY),
    create=extend_schema(request=ENTRY, responses={201: ENTRY}),
    retrieve=extend_schema(responses=ENTRY),
    update=extend_schema(request=ENTRY, responses=ENTRY),
    destroy=extend_schema(responses={204: None}),
)
class ModelViewSet(ViewSet):
    """Catalog entries, in the shape of the catalog file."""

    lookup_value_regex = "[^?#]+"

    def list(self, request: Request) -> Response:
        return Response({"results": catalog.export_catalog()["models"]})

    def create(self, request: Request) -> Response:
        entry = catalog.read_entry(request.data)
        catalog.save_entry(entry, actor=request.user.get_username())
        return Response(entry.to_dict(), status=201)

    def retrieve(self, request: Request, pk: str) -> Response:
        return Response(self._one(pk))

    def update(self, request: Request, pk: str) -> Response:
        entry = catalog.read_entry({**request.data, "name": pk})
        catalog.save_entry(entry, actor=request.user.get_username())
        return Response(entry.to_dict())

    def destroy(self, request: Request, pk: str) -> Response:
        catalog.delete_model(pk, actor=request.user.get_username())
        return Response(status=204)

    @extend_schema(request=ENTRY, responses=ENTRY)
    def plan(self, request: Request, pk: str) -> Response:
        """Where one more copy would go, or why nowhere and what would help; changes nothing.

        Body: empty for the stored profile; a profile, alone or as `profile` beside the model's `model_config`.
        """
        body = request.data if isinstance(request.data, dict) else {}
        draft = body.get("profile") if body.keys() & {"profile", "model_config"} else (body or None)
        return Response(show_plan(explanations.plan(pk, draft=draft, config=body.get("model_config"))))

    def _one(self, name: str) -> dict[str, Any]:
        for entry in catalog.export_catalog()["models"]:
            if entry["name"] == name:
                return dict(entry)
        raise NotFound(f"cannot find {name}: there is no such model")


class NodeViewSet(ListModelMixin, RetrieveModelMixin, GenericViewSet[Node]):
    queryset = Node.objects.prefetch_related("gpus__claims__shard__replica__model")
    serializer_class = NodeSerializer
    lookup_field = "name"
    lookup_value_regex = "[^/]+"
    filterset_fields = ["status", "schedulable"]

    @action(detail=True, methods=["post"])
    def cordon(self, request: Request, name: str) -> Response:
        reason = str(request.data.get("reason", ""))
        operations.cordon_node(node=self.get_object(), reason=reason, actor=request.user.get_username())
        return Response(NodeSerializer(self.get_object()).data)

    @action(detail=True, methods=["post"])
    def uncordon(self, request: Request, name: str) -> Response:
        operations.uncordon_node(node=self.get_object(), actor=request.user.get_username())
        return Response(NodeSerializer(self.get_object()).data)

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
        operations.set_wish(replica=self.get_object(), wish=ReplicaWish.STOP, actor=request.user.get_username())
        return Response(ReplicaSerializer(self.get_object()).data)

    @action(detail=True, methods=["post"])
    def run(self, request: Request, uid: str) -> Response:
        operations.set_wish(replica=self.get_object(), wish=ReplicaWish.RUN, actor=request.user.get_username())
        return Response(ReplicaSerializer(self.get_object()).data)

    @action(detail=True, methods=["post"])
    def restart(self, request: Request, uid: str) -> Response:
        operations.restart_replica(replica=self.get_object(), actor=request.user.get_username())
        return Response(ReplicaSerializer(self.get_object()).data)


class EventViewSet(ListModelMixin, GenericViewSet[Event]):
    queryset = Event.objects.all()
    serializer_class = EventSerializer
    filterset_fields = ["kind", "severity", "node__name"]
