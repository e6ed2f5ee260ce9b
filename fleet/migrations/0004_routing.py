from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('fleet', '0003_rollouts_drains_and_groups'),
    ]

    operations = [
        migrations.AddField(
            model_name='catalogmodel',
            name='routing',
            field=models.JSONField(blank=True, default=dict),
        ),
    ]
