from django.apps import AppConfig


class SiteConfig(AppConfig):
    """Loads the Celery app, so that tasks called from any process reach the configured broker."""

    name = "llmgw_site"

    def ready(self) -> None:
        from llmgw_site.celery import app

        app.set_default()
