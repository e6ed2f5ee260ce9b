"""Admin, REST API and health."""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import include, path, re_path
from django.views.generic import RedirectView

from fleet.api.index import Elsewhere, Index
from fleet.api.urls import router as fleet_api
from routing.api.urls import router as keys_api


def healthz(request: HttpRequest) -> HttpResponse:
    """The process answers. It says nothing of database or broker: a restart would not mend those."""
    return HttpResponse("ok\n", content_type="text/plain")


admin.autodiscover()  # here, where they are served: see PagesConfig
admin.site.index_title = "Fleet"
urlpatterns = [
    path("", RedirectView.as_view(url="/admin/", permanent=False)),
    path("healthz", healthz),
    path("admin/", admin.site.urls),
    path("api/v1/", include("routing.api.urls")),
    path("api/v1/", include("fleet.api.urls")),
    path("api/v1/", Index.as_view(resources=[name for name, *_ in (*keys_api.registry, *fleet_api.registry)])),
    re_path("^api/v1(?:/|$)", Elsewhere.as_view()),
]
handler400 = "llmgw_site.failures.bad_request"
handler403 = "llmgw_site.failures.permission_denied"
handler404 = "llmgw_site.failures.not_found"
handler500 = "llmgw_site.failures.server_error"
