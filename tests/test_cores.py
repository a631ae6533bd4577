import os
import sys

import pytest

from rollmill.cores import usable_cores


@pytest.mark.skipif(sys.platform != "linux", reason="other systems bind no process to cores")
def test_cores_that_are_others_do_not_count():
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, mine)
    assert usable_cores() == len(mine)
