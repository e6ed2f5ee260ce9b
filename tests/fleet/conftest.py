"""Pages are loaded where they are served; here their tables are parameters of tests."""

from django.contrib import admin

admin.autodiscover()
