"""What mkdocs does not do by itself: pages for registered names, the commands' help, formulas.

A method is a file under ``src/tokenlight/methods``; its page, its place in the navigation and its
row in the table come from that file alone. Nothing here needs mkdocs to be imported, so that the
tests can ask for the same pages.

    python docs/update_tables.py        # write the tables into the pages, for who reads them in a checkout
"""

from __future__ import annotations

import inspect
import posixpath
import re
import textwrap
from functools import cache
from pathlib import Path
from typing import Any, Literal

import notebooks
from curves import draw_curve
from formulas import as_markdown, draw_formulas
from strips import draw_all_strips, draw_picture

DOCS = Path(__file__).parent
Kind = Literal["methods", "metrics"]
KINDS: tuple[Kind, ...] = ("methods", "metrics")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^):#\s]+)\)")
_MEASURED = re.compile(r"^\| (\w+) \| ([\d.]+)<br><small>([\d.]+) … ([\d.]+)</small>", re.MULTILINE)
_TABLE = re.compile(r"^<!-- table: (\w+) -->$.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


# --- the events of mkdocs -------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """Fill the sections of the navigation whose pages nobody lists by hand."""
    pages_by_section = {
        "Tutorials": list(notebooks.build_pages()),
        "Methods": ["methods/index.md", *generate_pages("methods")],
        "Metrics": ["metrics/index.md", *generate_pages("metrics")],
        "Models": ["models.md", "architectures.md", *list_pages("models")],
        "Results": build_results_menu(),
        "Decisions": ["decisions.md", *list_pages("adr")],
    }
    for entry in config.nav:
        for title in entry if isinstance(entry, dict) else ():
            if title in pages_by_section and entry[title] == ["…"]:
                entry[title] = pages_by_section[title]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    pages_by_address = notebooks.build_pages()
    for kind in KINDS:
        pages_by_address |= generate_pages(kind)
    for address, content in pages_by_address.items():
        files.append(File.generated(config, address, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill the tables that class data and the command line know best; cut links out of the guide."""
    return localize_links(fill_tables(markdown, page.file.src_uri), page.file.src_uri)


def on_page_content(html: str, **_: Any) -> str:
    """Draw the formulas."""
    return draw_formulas(html)


# --- pages ----------------------------------------------------------------------------------------


def list_pages(folder: str) -> list[str]:
    """Addresses of the pages in a folder that others write, in order of their names."""
    return [str(path.relative_to(DOCS)) for path in sorted((DOCS / folder).rglob("*.md"))]


# The results in four groups, as a reader asks: folders and files in the order of the menu.
RESULT_GROUPS = {
    "Which method": (
        "leaderboard.md",
        "default",
        "frontier",
        "faithfulness.md",
        "faithfulness_sst2.md",
        "faithfulness_ag_news.md",
    ),
    "Is it true": (
        "pairs",
        "context",
        "trust",
        "reproduction/planted_shortcuts.md",
        "reproduction/hybrid_documents.md",
        "reproduction/sst_signs.md",
        "faithfulness_eraser_movies.md",
        "faithfulness_eraser_movies_stride.md",
        "precision",
    ),
    "What it costs": ("cost",),
    "Models and papers": (
        "reproduction",
        "readings",
        "heads",
        "vision",
        "word_clouds",
        "language_model",
    ),
}


def build_results_menu() -> list[Any]:
    """The index of the results, then four groups; a page that no group names stands in the last."""
    remaining = list_pages("results")
    menu: list[Any] = ["results/README.md"]
    remaining.remove("results/README.md")
    pages_by_group: dict[str, list[str]] = {}
    for group, names in RESULT_GROUPS.items():
        pages_by_group[group] = []
        for name in names:
            address = f"results/{name}"
            pages = [
                page for page in remaining if page == address or page.startswith(f"{address}/")
            ]
            pages_by_group[group] += pages
            remaining = [page for page in remaining if page not in pages]
    pages_by_group["Models and papers"] += remaining
    return menu + [{group: pages} for group, pages in pages_by_group.items()]


def generate_pages(kind: Kind) -> dict[str, str]:
    """Address to content of the page of every registered name."""
    from tokenlight import registry

    return {f"{kind}/{name}.md": build_page(kind, name) for name in registry.list_names(kind)}


def build_page(kind: Kind, name: str) -> str:
    """The page of one method or metric: its docstring, its facts, its options, how to ask for it."""
    from tokenlight import registry

    cls: Any = registry.load_class(kind, name)
    sections = [
        f"# {name}",
        *([strip_html] if kind == "methods" and (strip_html := draw_picture(name)) else []),
        f"::: {cls.__module__}.{cls.__qualname__}",
        "## Facts",
        _format_list(_facts(kind, cls)),
        *(_measured_section(name) if kind == "methods" else []),
        "## Options",
        _options(kind, name),
    ]
    presets = getattr(cls, "presets", {})
    if presets:
        sections += [
            "## Presets",
            _format_list({f"`{key}`": _format_settings(presets[key]) for key in presets}),
        ]
    source = inspect.getsource(inspect.getmodule(cls) or cls).rstrip()
    sections += ["## Use", _usage_example(kind, name), "## Source"]
    sections += ['??? note "The whole file"', textwrap.indent(f"```py\n{source}\n```", "    ")]
    return "\n\n".join(sections) + "\n"


def _facts(kind: Kind, cls: Any) -> dict[str, str]:
    facts = {"Paper": _paper(cls)}
    if kind == "methods":
        facts |= {
            "Depends on the target": _yes_or_no(not cls.class_agnostic),
            "Scores have a sign": _yes_or_no(cls.signed),
            "Per-layer terms": _yes_or_no(cls.per_layer),
        }
        if cls.slow:
            facts["Slow"] = "yes: seconds a text"
        if cls.needs_precision:
            facts["Precision"] = "float32 or float64"
        return facts
    return facts | {
        "Better": cls.better,
        "Asks the model about changed texts": _yes_or_no(cls.needs_model),
        "Needs marked spans": _yes_or_no(cls.needs_spans),
        "Needs further explanations": {"none": "no"}.get(
            cls.extra_explanations, cls.extra_explanations
        ),
    }


def _measured_section(name: str) -> list[str]:
    """The numbers of a method, and its curve where there is one."""
    curve = draw_curve(name)
    return ["## Measured faithfulness", _faithfulness_table(name), *([curve] if curve else [])]


def _faithfulness_table(name: str) -> str:
    """What a method reached on each kind of input, beside the best and random scores there; for one
    that was no candidate for the default, its AOPC on two data sets."""
    from tokenlight.explaining.default_method import KIND_DESCRIPTIONS as INPUTS
    from tokenlight.explaining.default_method import load_leaderboard, load_table

    rows = []
    board = load_leaderboard()
    if "ranks" in board and name in board["means"]:
        texts = f"[{board['texts']:,} texts](../results/leaderboard.md) of the leaderboard"
        rows.append(f"| {texts} | {_format_comparison(board['means'], name)} |")
    means_by_kind = {
        kind: entry["means"]
        for kind, entry in load_table()["kinds"].items()
        if name in entry["means"]
    }
    decides = "[what decides the default](../results/default/README.md)"
    if means_by_kind and name != "random":
        rows += [
            f"| {INPUTS[kind]} | {_format_comparison(means, name)} |"
            for kind, means in means_by_kind.items()
        ]
        note = f"AOPC; of a picture insertion − deletion, of a likeness its fall. See {decides}."
    else:
        pages = {"SST-2": "faithfulness_sst2.md", "AG News": "faithfulness_ag_news.md"}
        for data, file in pages.items():
            means = {entry[0]: float(entry[1]) for entry in _MEASURED.findall(read_result(file))}
            if name in means:
                rows.append(f"| [{data}](../results/{file}) | {_format_comparison(means, name)} |")
        note = "Mean AOPC; the pages that the links lead to have intervals."
    if not rows:
        return "Not measured on our data sets yet."
    header = ["| input | this method | best | random scores |", "|---|---|---|---|"]
    return "\n".join([*header, *rows]) + f"\n\n{note}"


def _format_comparison(means: dict[str, float], name: str) -> str:
    """A method's mean, the highest, and that of random scores, as cells."""
    best = max(means, key=lambda method: means[method])
    return f"{means[name]:.2f} | {means[best]:.2f} (`{best}`) | {means['random']:.2f}"


def read_result(file: str) -> str:
    """A page of results."""
    return (DOCS / "results" / file).read_text("utf-8")


def _options(kind: Kind, name: str) -> str:
    from tokenlight import registry

    options = registry.describe_options(kind, name)
    if not options:
        return "None."
    rows = [
        f"| `{option}` | `{default!r}` | {_cell(takes)} |"
        for option, (takes, default) in options.items()
    ]
    return "\n".join(["| option | default | takes |", "|---|---|---|", *rows])


def _usage_example(kind: Kind, name: str) -> str:
    if kind == "methods":
        return (
            f'```py\nexplainer.explain(text, method="{name}")\n```\n\n'
            f'```console\n$ tokenlight explain "a charming film" --method {name}\n```'
        )
    return f'```py\nexplainer.evaluate(explanations, metrics=["{name}"])\n```'


def _format_settings(settings: Any) -> str:
    return ", ".join(f"`{key}={value!r}`" for key, value in settings.items()) or "the defaults"


def _format_list(facts: dict[str, str]) -> str:
    return "\n".join(f"- {fact}: {value}" for fact, value in facts.items())


def _yes_or_no(holds: bool) -> str:
    return "yes" if holds else "no"


def _cell(text: str) -> str:
    return " or ".join(f"`{type_name}`" for type_name in text.split(" | "))


def localize_links(markdown: str, address: str) -> str:
    """A page whose links to files beside the guide, which a checkout has and a site lacks, are text;
    those to notebooks lead to their pages."""
    folder = posixpath.dirname(address)

    def replace_link(link: re.Match[str]) -> str:
        destination = posixpath.normpath(posixpath.join(folder, link[2]))
        if destination.startswith("../"):
            return f"`{destination[3:]}`"
        return link[0].replace(".ipynb)", ".md)")  # a notebook is a page of the guide

    return _LINK.sub(replace_link, markdown)


# --- tables ---------------------------------------------------------------------------------------


def fill_tables(markdown: str, address: str = "", *, site: bool = True) -> str:
    """A page with what stands between ``<!-- table: NAME -->`` and ``<!-- end -->`` made anew: for
    the ``site``, which has a page for every name, or for a checkout, which has its file.

    The page of the command line, which a checkout shows with its own short table, ends in the help
    of every command; that of the methods, in one sentence as each of them sees it.
    """

    def render_table(match: re.Match[str]) -> str:
        name = match[1]
        makers = {
            "models": models_table,
            "decisions": decisions_list,
            "recommended": recommended_table,
        }
        if name == "families":
            table = families_table(site=site)
        else:
            table = makers[name]() if name in makers else names_table(name, site=site)
        return f"<!-- table: {name} -->\n\n{table}\n\n<!-- end -->"

    markdown = _TABLE.sub(render_table, markdown)
    endings = {"cli.md": commands_help, "methods/index.md": draw_all_strips}
    return f"{markdown}\n{endings[address]()}\n" if site and address in endings else markdown


def recommended_table() -> str:
    """The methods that measured best for a text, as ``tokenlight methods`` lists them first."""
    from tokenlight import registry
    from tokenlight.explaining.default_method import load_leaderboard, recommend_methods
    from tokenlight.methods.base import describe_cost

    leaderboard = load_leaderboard()
    ranks = {
        name: f" {rank_interval[0]:.1f} |"
        for name, rank_interval in leaderboard.get("ranks", {}).items()
    }
    board = " [mean rank](results/leaderboard.md) |" if ranks else ""
    rows = [
        f"These five measured best on {leaderboard['texts']:,} texts, where random scores reach "
        f"{leaderboard['means']['random']:.2f}.\n",
        f"| method | meaning | passes | faithfulness (AOPC) |{board}",
        "|---|---|---|---|" + "---|" * bool(ranks),
    ]
    for name, mean in recommend_methods().items():
        cells = [f"`{name}`", _meaning(registry.load_class("methods", name))]
        cost = describe_cost(registry.build("methods", name))
        rows.append(f"| {' | '.join(cells)} | {cost} | {mean:.2f} |{ranks.get(name, '')}")
    return "\n".join(rows)


def families_table(*, site: bool) -> str:
    """The methods that are not recommended, by family, with what they cost."""
    from tokenlight import registry
    from tokenlight.explaining.default_method import recommend_methods
    from tokenlight.methods.base import FAMILIES, describe_cost

    families: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for name in registry.list_names("methods"):
        method = registry.build("methods", name)
        if name not in recommend_methods():
            address = f"methods/{name}.md" if site else f"../src/tokenlight/methods/{name}.py"
            families[method.family].append(f"[`{name}`]({address}) ({describe_cost(method)})")
    rows = [f"| {family} | {', '.join(links)} |" for family, links in families.items() if links]
    return "\n".join(["| family | methods |", "|---|---|", *rows])


def names_table(kind: Kind, *, site: bool) -> str:
    """One row a method or metric, from class data."""
    from tokenlight import registry

    fact_columns = ["target", "sign"] if kind == "methods" else ["better"]
    columns = [kind.removesuffix("s"), "meaning", *fact_columns, "paper"]
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name in registry.list_names(kind):
        cls: Any = registry.load_class(kind, name)
        facts = (
            [_yes_or_no(not cls.class_agnostic), _yes_or_no(cls.signed)]
            if kind == "methods"
            else [cls.better]
        )
        address = f"{name}.md" if site else f"../../src/tokenlight/{kind}/{name}.py"
        cells = [f"[`{name}`]({address})", _meaning(cls), *facts]
        rows.append(f"| {' | '.join(cells)} | {_paper(cls)} |")
    return "\n".join(rows)


def _paper(cls: Any) -> str:
    """Link to the reference, by first author and year; a method or metric of one's own may have none."""
    cites = getattr(cls, "cites", "")
    authors_of = rf"^## {cites}\n\n(.+?)(?<!\b[A-Z])\.\s"  # an initial does not end them
    match = re.search(authors_of, _citations(), re.MULTILINE | re.DOTALL)
    if not cites or match is None:
        return cites or "none"
    authors = re.split(r",\s|\sand\s", match[1])
    year = re.findall(r"\d{4}", cites)[0]
    names = [author.split()[-1] for author in authors]
    first = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
    return f"[{first} {year}](../citations.md#{cites})"


@cache
def _citations() -> str:
    return (DOCS / "citations.md").read_text("utf-8")


def _meaning(cls: Any) -> str:
    return as_markdown(inspect.getdoc(cls) or "").partition("\n")[0].replace("|", "\\|")


def models_table() -> str:
    """The embedded models with size, measured figure, and a link to the card where there is one."""
    from tokenlight.models import list_models

    rows = ["| name | task | size | measured |", "|---|---|---|---|"]
    for entry in list_models():
        card = f"models/{entry.name.rpartition('/')[2]}.md"
        name = f"[`{entry.name}`]({card})" if (DOCS / card).is_file() else f"`{entry.name}`"
        measured = f"{entry.quality} on {entry.split}"
        rows.append(f"| {name} | {entry.task} | {entry.size / 1e6:.1f} MB | {measured} |")
    return "\n".join(rows)


def decisions_list() -> str:
    """The records of decisions by number and title."""
    titles = [
        (path, (DOCS / path).read_text("utf-8").partition("\n")[0]) for path in list_pages("adr")
    ]
    return "\n".join(f"- [{title.lstrip('# ')}]({path})" for path, title in titles)


def commands_table() -> str:
    """One row a command; docs/cli.md holds it as it stands, so that a checkout shows it too."""
    rows = ["| command | what it does |", "|---|---|"]
    for name, command in _commands().items():
        first = inspect.cleandoc(command.help).partition("\n\n")[0].replace("\n", " ")
        rows.append(f"| `tokenlight {name}` | {first} |")
    return "\n".join(rows)


def commands_help() -> str:
    """The help of every command, as the terminal shows it."""
    from typer.testing import CliRunner

    from tokenlight.cli.app import app

    runner = CliRunner()
    sections = []
    for name in _commands():
        arguments = [*name.split(), "--help"]
        result = runner.invoke(app, arguments, prog_name="tokenlight", env={"COLUMNS": "90"})
        sections.append(f"### tokenlight {name}\n\n```text\n{result.output.strip()}\n```")
    return "\n\n".join(sections)


def _commands() -> dict[str, Any]:
    """Every command by its words: ``bench``, ``bench run`` …"""
    from typer.main import get_command

    from tokenlight.cli.app import app

    commands_by_name: dict[str, Any] = {}
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]  # a group
        commands_by_name[name] = command
        for subcommand_name, subcommand in getattr(command, "commands", {}).items():
            commands_by_name[f"{name} {subcommand_name}"] = subcommand
    return commands_by_name


if __name__ == "__main__":
    for path in sorted(DOCS.rglob("*.md")):
        written = path.read_text("utf-8")
        if (updated := fill_tables(written, site=False)) != written:
            path.write_text(updated, "utf-8")
            print(f"wrote {path.relative_to(DOCS)}")  # noqa: T201 - a script
