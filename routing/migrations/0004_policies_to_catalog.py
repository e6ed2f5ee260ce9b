from django.db import migrations

DEFAULTS = {
    "concurrency": 0,
    "queue": 100,
    "queue_seconds": 30.0,
    "hold_seconds": 0.0,
    "affinity": True,
    "sticky": "",
}
#: What the catalog's rules allow at most.
MOST = {"concurrency": 1_000_000, "queue": 1_000_000, "queue_seconds": 86_400.0, "hold_seconds": 86_400.0}


def into_the_catalog(apps, schema_editor):
    """How a model is served stands in its catalog entry; a policy of a model that there is none of had no effect."""
    models = apps.get_model("fleet", "CatalogModel").objects
    for policy in apps.get_model("routing", "Policy").objects.all():
        routing = {name: value for name in DEFAULTS if (value := getattr(policy, name)) != DEFAULTS[name]}
        routing |= {name: min(routing[name], most) for name, most in MOST.items() if name in routing}
        if routing:
            models.filter(name=policy.model).update(routing=routing)


class Migration(migrations.Migration):

    dependencies = [
        ('routing', '0003_limits_policies_ejections'),
        ('fleet', '0004_routing'),
    ]

    operations = [
        migrations.RunPython(into_the_catalog, migrations.RunPython.noop),
        migrations.DeleteModel(name='Policy'),
    ]
