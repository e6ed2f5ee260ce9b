"""http → Django; websocket → the agents' streams (and nothing else)."""

import os

import django
from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "llmgw_site.settings")
http = get_asgi_application()
django.setup(set_prefix=False)

from fleet.agents.urls import websocket_urlpatterns  # noqa: E402  (needs the apps)

application = ProtocolTypeRouter({"http": http, "websocket": URLRouter(websocket_urlpatterns)})
