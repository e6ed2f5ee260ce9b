"""Where agents dial in."""

from django.urls import path

from fleet.agents.consumer import AgentConsumer

websocket_urlpatterns = [path("agent/v1/stream", AgentConsumer.as_asgi())]
