"""A pytest plug-in: tests of one ``xdist_group`` run on one worker, one after the other.

With ``--dist loadgroup`` pytest-xdist tells the scheduler a test's group by a suffix of its id, which it
writes into ``item._nodeid``. Since 9.2 pytest reads the id from ``item._id``: the suffix is lost without a
word, and the group is spread over all workers. Here the suffix is put where pytest reads it.
"""

import pytest


# Last, behind the hook of pytest-xdist that writes the suffix.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    for item in items:
        suffixed_id = getattr(item, "_nodeid", item.nodeid)
        if item.nodeid != suffixed_id:
            item._id = type(item._id).parse(suffixed_id)
