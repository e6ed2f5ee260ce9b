"""Settings of the test run: a state directory of its own, so that nothing of a developer's is touched."""

import atexit
import os
import shutil
import tempfile

_state = tempfile.mkdtemp(prefix="llmgw-tests-")
atexit.register(shutil.rmtree, _state, ignore_errors=True)
os.makedirs(os.path.join(_state, "static"))
os.environ["LLMGW_STATE_DIR"] = _state
os.environ["LLMGW_JOIN_SECRET"] = "test-join-secret"
os.environ["LLMGW_SECRET_KEY"] = "test-secret-key-0123456789-0123456789-0123456789-abcdef"
os.environ["DATABASE_URL"] = os.environ.get("LLMGW_TEST_DATABASE_URL", "")  # PostgreSQL, when it is to be tried
for _name in ("LLMGW_REDIS_URL",):
    os.environ.pop(_name, None)

from llmgw_site.settings import *  # noqa: E402, F403

# Hundreds of tests make an operator; the real hash takes half a second each, and is Django's own.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
