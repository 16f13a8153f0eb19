"""The page of ``tokenlight diff``: what changed between two models, and the texts that changed most."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenlight.data.attribution import Attribution
from tokenlight.plots.html import _get_environment, _render_style, seal_page
from tokenlight.plots.scene import WORD_VIEW, MethodScene, build_scenes


@dataclass(frozen=True)
class ChangedTextScene:
    """A text on which two models differ, as the page shows it.

    Args:
        source: Where it comes from, and its true label.
        rank_correlation: How alike the word scores are, as text.
        before: The explanation by model A.
        after: The explanation by model B.
    """

    source: str
    rank_correlation: str
    before: Attribution
    after: Attribution

    @property
    def sides(self) -> list[tuple[str, MethodScene]]:
        """Name and scene of both sides."""
        sides = []
        for name, attribution in (("A", self.before), ("B", self.after)):
            (text_scene,) = build_scenes([attribution], (WORD_VIEW,))
            sides.append((name, text_scene.methods[0]))
        return sides

    @property
    def is_flipped(self) -> bool:
        """Whether the two models predict different labels."""
        return self.before.prediction.label != self.after.prediction.label


def render_comparison(
    title: str,
    interval_rows: Sequence[tuple[str, str, str]],
    changed: Sequence[ChangedTextScene],
    models: Sequence[str] | None = None,
) -> str:
    """Return the page, which loads nothing from outside.

    Args:
        title: Title of the page.
        interval_rows: Name, mean and interval of each value.
        changed: The texts that changed most.
        models: Names of A and B, if they are known.
    """
    environment = _get_environment()
    style = _render_style() + environment.get_template("comparison.css.j2").render()
    template = environment.get_template("comparison.html.j2")
    return template.render(
        title=title,
        interval_rows=interval_rows,
        changed=changed,
        models=models or (),
        **seal_page(style),
    )
