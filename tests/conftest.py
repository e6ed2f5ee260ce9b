"""Settings of the test run: a state directory of its own, so that nothing of a developer's is touched."""

import os
import tempfile

_state = tempfile.mkdtemp(prefix="llmgw-tests-")
os.makedirs(os.path.join(_state, "static"))
os.environ["LLMGW_STATE_DIR"] = _state
os.environ["LLMGW_JOIN_SECRET"] = "test-join-secret"
for name in ("DATABASE_URL", "LLMGW_REDIS_URL"):
    os.environ.pop(name, None)
