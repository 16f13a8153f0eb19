"""Kill the process that makes the n-th rename of a command, whichever of its processes that is.

Python imports this module by itself where its folder is on PYTHONPATH. ``CAMPAIGN_RENAMES`` names a file in
which every rename leaves a byte; ``CAMPAIGN_KILL_AT`` is the number of the rename that is the last one, and
``CAMPAIGN_KILL_WHEN`` says whether it still happens.
"""

import os
import signal

_real = os.replace


def _replace(source, target, **options):
    counter = os.open(os.environ["CAMPAIGN_RENAMES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(counter, b".")  # several processes append: each byte counts once
    number = os.lseek(counter, 0, os.SEEK_CUR)
    os.close(counter)
    is_last = number == int(os.environ.get("CAMPAIGN_KILL_AT", "0"))
    if is_last and os.environ.get("CAMPAIGN_KILL_WHEN") == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    _real(source, target, **options)
    if is_last:
        os.kill(os.getpid(), signal.SIGKILL)


if "CAMPAIGN_RENAMES" in os.environ:
    os.replace = _replace
