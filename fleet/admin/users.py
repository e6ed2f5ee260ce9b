"""Users and groups in the theme."""

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from fleet.lookups import OfferedLookups

admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class UserAdmin(OfferedLookups, DjangoUserAdmin, ModelAdmin):
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm


@admin.register(Group)
class GroupAdmin(OfferedLookups, DjangoGroupAdmin, ModelAdmin):
    pass
