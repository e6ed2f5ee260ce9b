"""Routes of the REST API."""

from django.urls import path, re_path
from drf_spectacular.views import SpectacularAPIView
from rest_framework.routers import SimpleRouter

from fleet.api.views import MODEL_NAME, EventViewSet, ModelViewSet, NodeViewSet, ReplicaViewSet

router = SimpleRouter()
router.register("models", ModelViewSet, basename="model")
router.register("nodes", NodeViewSet, basename="node")
router.register("replicas", ReplicaViewSet, basename="replica")
router.register("events", EventViewSet, basename="event")
#: Before the router's own: a model's name may have slashes, so its page takes whatever follows.
plan = re_path(f"^models/(?P<pk>{MODEL_NAME})/plan/$", ModelViewSet.as_view({"post": "plan"}), name="model-plan")
schema = SpectacularAPIView.as_view()
urlpatterns = [plan, *router.urls, path("schema/", schema, name="schema"), path("schema", schema)]
