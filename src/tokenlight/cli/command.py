"""The class of all commands: help that lists options by group, and earlier spellings of options."""

from typing import Any

from typer.core import TyperCommand

from tokenlight.cli.options import GROUPS

# Earlier spelling → spelling of today. The help lists only that of today.
OLD_FLAGS = {
    "--block": "--part-size",
    "--models": "--model",
    "--min-focus": "--min-correlation",
    "--out": "--output",
    "--slice": "--part-size",
    "--synt-thres": "--syntactic-thresholds",
}
OTHER_OPTIONS = "Options"


class Command(TyperCommand):
    """A command of ``tokenlight``."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options of each group under its title."""
        arguments = []
        options_by_group: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            help_record = parameter.get_help_record(ctx)
            if help_record is None:
                continue
            if parameter.param_type_name == "argument":
                arguments.append(help_record)
                continue
            group = getattr(parameter, "rich_help_panel", None) or OTHER_OPTIONS
            options_by_group.setdefault(group, []).append(help_record)
        sections = {"Arguments": arguments}
        for group in (*GROUPS, OTHER_OPTIONS):
            sections[group] = options_by_group.get(group, [])
        for title, help_records in sections.items():
            if help_records:
                with formatter.section(title):
                    formatter.write_dl(help_records)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line after replacing earlier spellings."""
        current_args = []
        reads_options = True
        for argument in args:
            if argument == "--":  # everything after it is text
                reads_options = False
            current_args.append(_replace_old_flag(argument) if reads_options else argument)
        return super().parse_args(ctx, current_args)


def _replace_old_flag(argument: str) -> str:
    """Replace an earlier spelling in ``--flag`` or ``--flag=value``."""
    flag, equals_sign, value = argument.partition("=")
    return OLD_FLAGS.get(flag, flag) + equals_sign + value
