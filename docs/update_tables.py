"""Pages and tables of the guide that mkdocs does not build by itself: methods, metrics, help, formulas.

A method is a file under ``src/tokenlight/methods``; its page, its place in the navigation and its
row in the table come from that file alone. Nothing here needs mkdocs to be imported, so that the
tests can ask for the same pages.

    python docs/update_tables.py        # write the tables into the pages of a checkout
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
    """Fill the sections of the navigation whose pages are not listed by hand."""
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
    """Fill the generated tables, and replace links that lead out of the guide."""
    return localize_links(fill_tables(markdown, page.file.src_uri), page.file.src_uri)


def on_page_content(html: str, **_: Any) -> str:
    """Draw the formulas."""
    return draw_formulas(html)


# --- pages ----------------------------------------------------------------------------------------


def list_pages(folder: str) -> list[str]:
    """Return the addresses of the pages in a folder, in order of their names."""
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
    """Return the index of the results, then four groups; a page of no group joins the last one."""
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
    """Return the page of every registered name, by its address."""
    from tokenlight import registry

    return {f"{kind}/{name}.md": build_page(kind, name) for name in registry.list_names(kind)}


def build_page(kind: Kind, name: str) -> str:
    """Build the page of one method or metric: its docstring, properties, options and use."""
    from tokenlight import registry

    cls: Any = registry.load_class(kind, name)
    is_method = kind == "methods"
    sections = [f"# {name}"]
    strip_html = draw_picture(name) if is_method else ""
    if strip_html:
        sections.append(strip_html)
    sections += [
        f"::: {cls.__module__}.{cls.__qualname__}",
        "## Facts",
        _format_list(_list_facts(kind, cls)),
    ]
    if is_method:
        sections += _build_measured_section(name)
    sections += ["## Options", _build_options_table(kind, name)]
    presets = getattr(cls, "presets", {})
    if presets:
        settings = {f"`{preset}`": _format_settings(presets[preset]) for preset in presets}
        sections += ["## Presets", _format_list(settings)]
    source = inspect.getsource(inspect.getmodule(cls) or cls).rstrip()
    indented_source = textwrap.indent(f"```py\n{source}\n```", "    ")
    sections += ["## Use", _build_usage_example(kind, name)]
    sections += ["## Source", '??? note "The whole file"', indented_source]
    return "\n\n".join(sections) + "\n"


def _list_facts(kind: Kind, cls: Any) -> dict[str, str]:
    """List the properties of a method or metric, as its class declares them."""
    facts = {"Paper": _link_paper(cls)}
    if kind == "methods":
        facts |= {
            "Depends on the target": _yes_or_no(not cls.class_agnostic),
            "Scores have a sign": _yes_or_no(cls.signed),
            "Per-layer terms": _yes_or_no(cls.per_layer),
        }
        if cls.slow:
            facts["Slow"] = "yes: seconds per text"
        if cls.needs_precision:
            facts["Precision"] = "float32 or float64"
        return facts
    extra_explanations = cls.extra_explanations
    if extra_explanations == "none":
        extra_explanations = "no"
    return facts | {
        "Better": cls.better,
        "Runs the model on perturbed texts": _yes_or_no(cls.needs_model),
        "Needs marked spans": _yes_or_no(cls.needs_spans),
        "Needs further explanations": extra_explanations,
    }


def _build_measured_section(name: str) -> list[str]:
    """Build the section with the numbers of a method, and its curve where there is one."""
    section = ["## Measured faithfulness", _build_faithfulness_table(name)]
    curve = draw_curve(name)
    if curve:
        section.append(curve)
    return section


def _build_faithfulness_table(name: str) -> str:
    """Build the table of what a method reached on each kind of input, beside the best and random scores.

    For a method that was no candidate for the default, it has the AOPC on two data sets.
    """
    from tokenlight.explaining.default_method import KIND_DESCRIPTIONS
    from tokenlight.explaining.default_method import load_leaderboard, load_measured_results

    rows = []
    board = load_leaderboard()
    if "ranks" in board and name in board["means"]:
        texts = f"[{board['texts']:,} texts](../results/leaderboard.md) of the leaderboard"
        rows.append(f"| {texts} | {_format_comparison(board['means'], name)} |")
    means_by_kind = {}
    for kind, entry in load_measured_results()["kinds"].items():
        if name in entry["means"]:
            means_by_kind[kind] = entry["means"]
    if means_by_kind and name != "random":
        for kind, means in means_by_kind.items():
            rows.append(f"| {KIND_DESCRIPTIONS[kind]} | {_format_comparison(means, name)} |")
        note = (
            "AOPC; for an image, insertion − deletion; for the similarity of two texts, the drop of the "
            "cosine. See [what decides the default](../results/default/README.md)."
        )
    else:
        pages = {"SST-2": "faithfulness_sst2.md", "AG News": "faithfulness_ag_news.md"}
        for data, file in pages.items():
            measured = _MEASURED.findall(read_result(file))
            means = {method: float(mean) for method, mean, _, _ in measured}
            if name in means:
                rows.append(f"| [{data}](../results/{file}) | {_format_comparison(means, name)} |")
        note = "Mean AOPC; the pages that the links lead to have intervals."
    if not rows:
        return "Not measured on our data sets yet."
    header = ["| input | this method | best | random scores |", "|---|---|---|---|"]
    return "\n".join([*header, *rows]) + f"\n\n{note}"


def _format_comparison(means: dict[str, float], name: str) -> str:
    """Format a method's mean, the highest, and that of random scores, as cells."""
    best = max(means, key=lambda method: means[method])
    return f"{means[name]:.2f} | {means[best]:.2f} (`{best}`) | {means['random']:.2f}"


def read_result(file: str) -> str:
    """Read a page of results."""
    return (DOCS / "results" / file).read_text("utf-8")


def _build_options_table(kind: Kind, name: str) -> str:
    from tokenlight import registry

    options = registry.describe_options(kind, name)
    if not options:
        return "None."
    rows = ["| option | default | type |", "|---|---|---|"]
    for option, (type_names, default) in options.items():
        rows.append(f"| `{option}` | `{default!r}` | {_format_types(type_names)} |")
    return "\n".join(rows)


def _build_usage_example(kind: Kind, name: str) -> str:
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


def _format_types(type_names: str) -> str:
    return " or ".join(f"`{type_name}`" for type_name in type_names.split(" | "))


def localize_links(markdown: str, address: str) -> str:
    """Replace links to files outside the guide, which a site lacks, by text, and let notebooks be pages."""
    folder = posixpath.dirname(address)

    def replace_link(link: re.Match[str]) -> str:
        destination = posixpath.normpath(posixpath.join(folder, link[2]))
        if destination.startswith("../"):
            return f"`{destination[3:]}`"
        return link[0].replace(".ipynb)", ".md)")  # a notebook is a page of the guide

    return _LINK.sub(replace_link, markdown)


# --- tables ---------------------------------------------------------------------------------------


def fill_tables(markdown: str, address: str = "", *, site: bool = True) -> str:
    """Fill the tables of a page, between ``<!-- table: NAME -->`` and ``<!-- end -->``.

    On the site, the page of the command line also ends in the help of every command, and that of the
    methods in one sentence explained by each of them.

    Args:
        markdown: The page.
        address: Its address in the guide.
        site: Whether names link to their pages on the site, or to their files in a checkout.
    """

    table_builders = {
        "models": build_models_table,
        "decisions": build_decisions_list,
        "recommended": build_recommended_table,
    }

    def render_table(match: re.Match[str]) -> str:
        name = match[1]
        if name == "families":
            table = build_families_table(site=site)
        elif name in table_builders:
            table = table_builders[name]()
        else:
            table = build_names_table(name, site=site)
        return f"<!-- table: {name} -->\n\n{table}\n\n<!-- end -->"

    markdown = _TABLE.sub(render_table, markdown)
    endings = {"cli.md": build_commands_help, "methods/index.md": draw_all_strips}
    if site and address in endings:
        return f"{markdown}\n{endings[address]()}\n"
    return markdown


def build_recommended_table() -> str:
    """Build the table of the methods that measured best on texts."""
    from tokenlight import registry
    from tokenlight.explaining.default_method import load_leaderboard, recommend_methods
    from tokenlight.methods.base import describe_cost

    leaderboard = load_leaderboard()
    mean_ranks = {}
    for name, (mean_rank, *_) in leaderboard.get("ranks", {}).items():
        mean_ranks[name] = f" {mean_rank:.1f} |"
    rank_column = " [mean rank](results/leaderboard.md) |" if mean_ranks else ""
    rows = [
        f"These five measured best on {leaderboard['texts']:,} texts, where random scores reach "
        f"{leaderboard['means']['random']:.2f}.\n",
        f"| method | meaning | passes | faithfulness (AOPC) |{rank_column}",
        "|---|---|---|---|" + "---|" * bool(mean_ranks),
    ]
    for name, mean in recommend_methods().items():
        cells = [f"`{name}`", _read_first_sentence(registry.load_class("methods", name))]
        cost = describe_cost(registry.build("methods", name))
        rows.append(f"| {' | '.join(cells)} | {cost} | {mean:.2f} |{mean_ranks.get(name, '')}")
    return "\n".join(rows)


def build_families_table(*, site: bool) -> str:
    """Build the table of the other methods, by family, with their cost."""
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


def build_names_table(kind: Kind, *, site: bool) -> str:
    """Build a table with one row per method or metric, from their classes."""
    from tokenlight import registry

    fact_columns = ["target", "sign"] if kind == "methods" else ["better"]
    columns = [kind.removesuffix("s"), "meaning", *fact_columns, "paper"]
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name in registry.list_names(kind):
        cls: Any = registry.load_class(kind, name)
        facts = [cls.better] if kind == "metrics" else []
        if kind == "methods":
            facts = [_yes_or_no(not cls.class_agnostic), _yes_or_no(cls.signed)]
        address = f"{name}.md" if site else f"../../src/tokenlight/{kind}/{name}.py"
        cells = [f"[`{name}`]({address})", _read_first_sentence(cls), *facts]
        rows.append(f"| {' | '.join(cells)} | {_link_paper(cls)} |")
    return "\n".join(rows)


def _link_paper(cls: Any) -> str:
    """Link to the reference, by first author and year; a user's own method may have none."""
    cites = getattr(cls, "cites", "")
    authors_of = rf"^## {cites}\n\n(.+?)(?<!\b[A-Z])\.\s"  # an initial does not end them
    match = re.search(authors_of, _read_citations(), re.MULTILINE | re.DOTALL)
    if not cites or match is None:
        return cites or "none"
    authors = re.split(r",\s|\sand\s", match[1])
    year = re.findall(r"\d{4}", cites)[0]
    names = [author.split()[-1] for author in authors]
    first = f"{names[0]} et al." if len(names) > 2 else " and ".join(names)
    return f"[{first} {year}](../citations.md#{cites})"


@cache
def _read_citations() -> str:
    return (DOCS / "citations.md").read_text("utf-8")


def _read_first_sentence(cls: Any) -> str:
    return as_markdown(inspect.getdoc(cls) or "").partition("\n")[0].replace("|", "\\|")


def build_models_table() -> str:
    """Build the table of the embedded models, with size, quality and a link to the model card."""
    from tokenlight.models import list_models

    rows = ["| name | task | size | measured |", "|---|---|---|---|"]
    for entry in list_models():
        card = f"models/{entry.name.rpartition('/')[2]}.md"
        name = f"[`{entry.name}`]({card})" if (DOCS / card).is_file() else f"`{entry.name}`"
        measured = f"{entry.quality} on {entry.split}"
        rows.append(f"| {name} | {entry.task} | {entry.size / 1e6:.1f} MB | {measured} |")
    return "\n".join(rows)


def build_decisions_list() -> str:
    """List the decision records by number and title."""
    titles = [
        (path, (DOCS / path).read_text("utf-8").partition("\n")[0]) for path in list_pages("adr")
    ]
    return "\n".join(f"- [{title.lstrip('# ')}]({path})" for path, title in titles)


def build_commands_table() -> str:
    """Build a table with one row per command; docs/cli.md holds a copy of it."""
    rows = ["| command | what it does |", "|---|---|"]
    for name, command in _list_commands().items():
        first = inspect.cleandoc(command.help).partition("\n\n")[0].replace("\n", " ")
        rows.append(f"| `tokenlight {name}` | {first} |")
    return "\n".join(rows)


def build_commands_help() -> str:
    """Return the help of every command, as the terminal shows it."""
    from typer.testing import CliRunner

    from tokenlight.cli.app import app

    runner = CliRunner()
    sections = []
    for name in _list_commands():
        arguments = [*name.split(), "--help"]
        result = runner.invoke(app, arguments, prog_name="tokenlight", env={"COLUMNS": "90"})
        sections.append(f"### tokenlight {name}\n\n```text\n{result.output.strip()}\n```")
    return "\n\n".join(sections)


def _list_commands() -> dict[str, Any]:
    """Return every command by its words: ``bench``, ``bench run`` …"""
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
