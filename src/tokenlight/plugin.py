"""What authors of methods and metrics import; nothing else inside tokenlight is promised to them.

A file ``methods/NAME.py`` with ``METHOD = …``, or ``metrics/NAME.py`` with ``METRIC = …``, is the method
or metric ``NAME``. Another package offers the same object by an entry point::

    [project.entry-points."tokenlight.methods"]
    gradient_norm = "my_package.gradient_norm"
"""

from tokenlight.capture.tape import Site, Tape
from tokenlight.methods._method import Method
from tokenlight.metrics._metric import Answers, Case, Measured, Metric

__all__ = ["Answers", "Case", "Measured", "Method", "Metric", "Site", "Tape"]
