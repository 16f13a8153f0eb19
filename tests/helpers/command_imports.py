"""Everything that commands import: the fork server of ``commands.py`` imports this module for that alone."""

import tokenlight.bench.part_runner
import tokenlight.bench.report
import tokenlight.bench.run
import tokenlight.cli.app
import tokenlight.evaluation.report
import tokenlight.evaluation.run
import tokenlight.explainer  # noqa: F401
