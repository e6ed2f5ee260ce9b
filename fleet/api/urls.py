"""Routes of the REST API."""

from django.urls import path
from drf_spectacular.views import SpectacularAPIView
from rest_framework.routers import SimpleRouter

from fleet.api.views import EventViewSet, ModelViewSet, NodeViewSet, ReplicaViewSet

router = SimpleRouter()
router.register("models", ModelViewSet, basename="model")
router.register("nodes", NodeViewSet, basename="node")
router.register("replicas", ReplicaViewSet, basename="replica")
router.register("events", EventViewSet, basename="event")
urlpatterns = [*router.urls, path("schema", SpectacularAPIView.as_view(), name="schema")]
