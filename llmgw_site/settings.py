"""Wiring and values from the environment. `.env.example` lists every variable with its default."""

import sys
from pathlib import Path
from typing import Any

import dj_database_url
from django.templatetags.static import static

from llmgw_site import env
from llmgw_site.up.bus import socket_path

BASE_DIR = Path(__file__).resolve().parent.parent
STATE_DIR = Path(env.text("LLMGW_STATE_DIR", str(BASE_DIR / "var"))).absolute()

DEBUG = env.boolean("LLMGW_DEBUG")
#: `manage.py up` generates and keeps one; without it only commands that need no secret work.
SECRET_KEY = env.secret("LLMGW_SECRET_KEY")
_kept_key = STATE_DIR / "secret_key"
if not SECRET_KEY and _kept_key.is_file():
    SECRET_KEY = _kept_key.read_text(encoding="utf-8").strip()
SECRET_KEY = SECRET_KEY or "insecure-until-manage.py-up-or-LLMGW_SECRET_KEY-gives-one-0123456789"

ALLOWED_HOSTS = env.words("LLMGW_ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]")
CSRF_TRUSTED_ORIGINS = env.words("LLMGW_TRUSTED_ORIGINS")
_https = env.boolean("LLMGW_HTTPS")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _https
SECURE_SSL_REDIRECT = _https
SECURE_HSTS_SECONDS = 31_536_000 if _https else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = _https
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if env.boolean("LLMGW_BEHIND_PROXY") else None
X_FRAME_OPTIONS = "DENY"
CSRF_FAILURE_VIEW = "llmgw_site.failures.too_old_a_form"

INSTALLED_APPS = [
    "unfold",
    *(["daphne"] if sys.argv[1:2] == ["runserver"] else []),  # serves agents there too; no other process needs it
    "llmgw_site.pages.PagesConfig",  # django.contrib.admin
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "channels",
    "fleet",
    "routing",
    "llmgw_site",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.gzip.GZipMiddleware",  # the map of 2,000 cards: 401 kB, 18 on the wire
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "llmgw_site.odd.OddValues",
]
ROOT_URLCONF = "llmgw_site.urls"
ASGI_APPLICATION = "llmgw_site.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "fleet" / "templates"],  # before unfold's own home page
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

_sqlite = f"sqlite:///{STATE_DIR / 'llmgw.sqlite3'}"
_database: dict[str, Any] = dict(dj_database_url.parse(env.secret("DATABASE_URL") or _sqlite, conn_max_age=60))
_database["CONN_HEALTH_CHECKS"] = True
if _database["ENGINE"].endswith("sqlite3"):
    # Measured: DEFERRED gave 10 to 135 "database is locked" in 8 s with 3 to 4 writers, IMMEDIATE in WAL mode none.
    _database["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }
DATABASES = {"default": _database}
#: Of the web process, at most: four are the agents', with each of the others one request is answered at a time.
WEB_CONNECTIONS = int(env.number("LLMGW_WEB_CONNECTIONS", 10, least=5))
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

#: redis://… or unix:///path of the broker; `manage.py up` sets it to its own Valkey server when it is not given.
REDIS_URL = env.secret("LLMGW_REDIS_URL") or f"unix://{socket_path(STATE_DIR)}"
CHANNEL_LAYERS = {
    "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [REDIS_URL]}}
}

#: What the fleet is told; fleet.conf gives the types. Seconds unless the name says otherwise.
FLEET: dict[str, Any] = {
    "heartbeat_seconds": env.number("FLEET_HEARTBEAT_SECONDS", 10, least=0.1),
    "unreachable_after_seconds": env.number("FLEET_UNREACHABLE_AFTER_SECONDS", 30, least=0.2),
    "lost_after_seconds": env.number("FLEET_LOST_AFTER_SECONDS", 300, least=0.3),
    "start_grace_seconds": env.number("FLEET_START_GRACE_SECONDS", 180),
    "brake_share": env.number("FLEET_BRAKE_SHARE", 0.4),
    "brake_nodes": int(env.number("FLEET_BRAKE_NODES", 3, least=1)),
    "loss_spacing_seconds": env.number("FLEET_LOSS_SPACING_SECONDS", 10),
    "flap_damping_seconds": env.number("FLEET_FLAP_DAMPING_SECONDS", 60),
    "report_seconds": env.number("FLEET_REPORT_SECONDS", 180, least=1),
    "hung_after_seconds": env.number("FLEET_HUNG_AFTER_SECONDS", 45, least=1),
    "rendezvous_ports": env.ports("FLEET_RENDEZVOUS_PORTS", "21000-21999"),
    "join_secret": env.secret("LLMGW_JOIN_SECRET"),
    "insecure_agents": env.boolean("LLMGW_INSECURE_AGENTS"),
}
#: How often beat runs each task (llmgw_site.celery is the only reader).
PERIODS = {
    "reconcile": env.number("LLMGW_RECONCILE_PERIOD_SECONDS", 5, least=0.2),
    "judge_nodes": env.number("LLMGW_JUDGE_PERIOD_SECONDS", 2, least=0.2),
    "housekeeping": env.number("LLMGW_HOUSEKEEPING_PERIOD_SECONDS", 600, least=1),
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "routing.authentication.ApiKeyAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": [
        "rest_framework.permissions.IsAdminUser",
        "fleet.api.bodies.ReadableBody",
        "fleet.api.queries.KnownQuery",
    ],
    "DEFAULT_PARSER_CLASSES": ["fleet.api.bodies.JsonObjectParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_FILTER_BACKENDS": ["fleet.api.queries.KnownFilters"],
    "DEFAULT_PAGINATION_CLASS": "fleet.api.pages.BoundedPages",
    "PAGE_SIZE": 100,
    "EXCEPTION_HANDLER": "fleet.api.problems.handle",
}
SPECTACULAR_SETTINGS = {"TITLE": "llmgw", "VERSION": "1", "SERVE_INCLUDE_SCHEMA": False}
#: The accent: indigo.
_ACCENT = {
    "50": "oklch(96.2% .018 272.314)",
    "100": "oklch(93% .034 272.788)",
    "200": "oklch(87% .065 274.039)",
    "300": "oklch(78.5% .115 274.713)",
    "400": "oklch(67.3% .182 276.935)",
    "500": "oklch(58.5% .233 277.117)",
    "600": "oklch(51.1% .262 276.966)",
    "700": "oklch(45.7% .24 277.023)",
    "800": "oklch(39.8% .195 277.366)",
    "900": "oklch(35.9% .144 278.697)",
    "950": "oklch(25.7% .09 281.288)",
}
UNFOLD = {
    "COLORS": {"primary": _ACCENT},
    "SITE_TITLE": "llmgw",
    "SITE_HEADER": "llmgw",
    "SITE_URL": None,  # there is nothing beside these pages
    "SHOW_HISTORY": True,
    "DASHBOARD_CALLBACK": "fleet.admin.home.fill",
    "STYLES": [lambda request: static("fleet/fleet.css")],
    "SCRIPTS": [lambda request: static("fleet/live.js")],
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": lambda request: static("fleet/favicon.svg")}],
    "SITE_ICON": lambda request: static("fleet/favicon.svg"),
    "SIDEBAR": {"show_all_applications": False, "navigation": "llmgw_site.navigation.navigation"},
}

LOGIN_REDIRECT_URL = "admin:index"
LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"
FORMAT_MODULE_PATH = ["llmgw_site.formats"]
STATIC_URL = "static/"
STATIC_ROOT = STATE_DIR / "static"
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "filters": {
        "error_numbers": {"()": "llmgw_site.log.ErrorNumbers"},
        "refused": {"()": "llmgw_site.log.Refused"},
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["refused"]}},
    "root": {"handlers": ["stderr"], "level": env.text("LLMGW_LOG_LEVEL", "INFO")},
    "loggers": {
        "daphne": {"level": "WARNING"},
        "django.channels": {"level": "WARNING"},
        "django.request": {"filters": ["error_numbers"]},
    },
}
