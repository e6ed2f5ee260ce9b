"""Routes of the REST API."""

from rest_framework.routers import SimpleRouter

from routing.api.views import EjectionViewSet, KeyViewSet

router = SimpleRouter()
router.register("keys", KeyViewSet, basename="key")
router.register("ejections", EjectionViewSet, basename="ejection")
urlpatterns = router.urls
