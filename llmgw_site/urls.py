"""Admin, REST API and health."""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.views.generic import RedirectView


def healthz(request: HttpRequest) -> HttpResponse:
    """The process answers. It says nothing of database or broker: a restart would not mend those."""
    return HttpResponse("ok\n", content_type="text/plain")


admin.site.index_title = "Fleet"
urlpatterns = [
    path("", RedirectView.as_view(url="/admin/", permanent=False)),
    path("healthz", healthz),
    path("admin/", admin.site.urls),
    path("api/v1/", include("routing.api.urls")),
    path("api/v1/", include("fleet.api.urls")),
]
