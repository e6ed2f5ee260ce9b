"""Each view translates and calls one service."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status, viewsets
from rest_framework.decorators import action
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer

from routing.api.serializers import EjectionSerializer, KeySerializer, NewKeySerializer, NoFields
from routing.models import ApiKey, Ejection
from routing.services import KeyNameTaken, change_key, create_key, revoke_key


class NameTaken(APIException):
    status_code, default_code = status.HTTP_409_CONFLICT, "name_taken"


@contextmanager
def _taken_is_conflict() -> Iterator[None]:
    try:
        yield
    except KeyNameTaken as error:
        raise NameTaken(str(error)) from None


class KeyViewSet(
    mixins.ListModelMixin, mixins.RetrieveModelMixin, mixins.UpdateModelMixin, viewsets.GenericViewSet[ApiKey]
):
    """Keys are revoked, not deleted: their usage goes on to name them."""

    queryset = ApiKey.objects.all()
    serializer_class = KeySerializer

    @extend_schema(request=KeySerializer, responses={201: NewKeySerializer})
    def create(self, request: Request) -> Response:
        given = KeySerializer(data=request.data)
        given.is_valid(raise_exception=True)
        with _taken_is_conflict():
            row, text = create_key(**given.validated_data)
        return Response({**KeySerializer(row).data, "key": text}, status=status.HTTP_201_CREATED)

    def perform_update(self, serializer: BaseSerializer[Any]) -> None:
        with _taken_is_conflict():
            serializer.instance = change_key(serializer.instance, serializer.validated_data)

    @extend_schema(request=None, responses=KeySerializer)
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, pk: str) -> Response:
        NoFields(data=request.data).is_valid(raise_exception=True)
        return Response(KeySerializer(revoke_key(self.get_object(), now=timezone.now())).data)


class EjectionViewSet(mixins.ListModelMixin, viewsets.GenericViewSet[Ejection]):
    queryset = Ejection.objects.all()
    serializer_class = EjectionSerializer
