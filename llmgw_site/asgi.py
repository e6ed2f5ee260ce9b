"""http → Django; websocket → the agents' streams (and nothing else)."""

import os
from typing import Any

import django
from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "llmgw_site.settings")
_django = get_asgi_application()
django.setup(set_prefix=False)

from fleet.agents.database import CONNECTIONS  # noqa: E402
from fleet.agents.pump import pump  # noqa: E402  (needs the apps)
from fleet.agents.urls import websocket_urlpatterns  # noqa: E402
from llmgw_site.few_threads import FewThreads  # noqa: E402
from llmgw_site.readable import Readable  # noqa: E402

http = Readable(FewThreads(_django, settings.WEB_CONNECTIONS - CONNECTIONS))
_router = ProtocolTypeRouter({"http": http, "websocket": URLRouter(websocket_urlpatterns)})


async def application(scope: Any, receive: Any, send: Any) -> None:
    """The first request of any kind starts the pump, so that silent nodes are judged though none has come back yet."""
    pump()
    await _router(scope, receive, send)
