"""Where the REST API begins, and what it says of paths that it does not have."""

from collections.abc import Sequence
from typing import Any

from django.http import HttpResponse, HttpResponseRedirect
from django.urls import resolve
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

BASE = "/api/v1/"


@extend_schema(exclude=True)
class Index(APIView):
    """The addresses of the resources and of the OpenAPI description."""

    resources: Sequence[str] = ()

    def get(self, request: Request) -> Response:
        at = {name: request.build_absolute_uri(f"{BASE}{name}/") for name in sorted(self.resources)}
        return Response({"resources": at, "schema": request.build_absolute_uri(f"{BASE}schema/")})


@extend_schema(exclude=True)
class Elsewhere(APIView):
    """Any other path: the same with a slash at its end, or a problem that says where to look."""

    any_query = True

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self.slashed = f"{request.path}/"
        self.meant = not request.path.endswith("/") and not _is_elsewhere(self.slashed)

    def get(self, request: Request) -> HttpResponse:
        if self.meant:
            query = request.META.get("QUERY_STRING", "")
            return HttpResponseRedirect(f"{self.slashed}?{query}" if query else self.slashed)
        return self._refuse(request)

    def _refuse(self, request: Request) -> HttpResponse:
        hint = f"{self.slashed} is there" if self.meant else f"{BASE} lists what is there"
        raise NotFound(f"cannot find {request.path}; {hint}")

    post = put = patch = delete = _refuse


def _is_elsewhere(path: str) -> bool:
    return getattr(resolve(path).func, "view_class", None) is Elsewhere
