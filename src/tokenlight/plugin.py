"""What authors of methods and metrics import; nothing else inside tokenlight is promised to them.

A file ``methods/NAME.py`` or ``metrics/NAME.py`` is the method or metric ``NAME``: the class in it, or
what it calls ``METHOD`` or ``METRIC``. Another package offers the same by an entry point::

    [project.entry-points."tokenlight.methods"]
    gradient_norm = "my_package.gradient_norm"
"""

from tokenlight.capture.tape import Site, Tape
from tokenlight.methods._method import Method
from tokenlight.metrics._metric import Answers, Case, Measured, Metric

__all__ = ["Answers", "Case", "Measured", "Method", "Metric", "Site", "Tape"]
