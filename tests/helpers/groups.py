"""Groups of slow tests, each of which runs in one of the two processes of `make test-slow`."""

import pytest

# Tests that open a browser, kill processes or measure time, one after the other.
ALONE = pytest.mark.xdist_group("alone")
