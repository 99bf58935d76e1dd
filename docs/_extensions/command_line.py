"""A directive that writes the reference of the command line from the parsers themselves.

    .. command-line::

A section a verb: what it does, how it is called, a table a group of options, and what stands below
them in ``--help``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from tables import section, table

from simdev.commands import epilog_of, parser

WIDTH = 88


def verbs_of(commands: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Its verbs in the order of ``--help``."""
    for action in commands._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def head(action: argparse.Action) -> str:
    """How an option is written."""
    if not action.option_strings:
        return action.metavar if isinstance(action.metavar, str) else action.dest
    flags = ", ".join(action.option_strings)
    value = action.metavar
    if value is None and action.choices:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    return f"{flags} {value}" if value and action.nargs != 0 else flags


def rows(actions: list[argparse.Action], command: argparse.ArgumentParser) -> list[tuple[str, str]]:
    """What each option is, and what it does."""
    texts = [command._get_formatter()._expand_help(a) if a.help else "" for a in actions]
    return [(f"``{head(a)}``", text) for a, text in zip(actions, texts, strict=True)]


def literal(text: str) -> nodes.literal_block:
    """Text whose line breaks stay."""
    return nodes.literal_block(text, text, language="none")


def usage(command: argparse.ArgumentParser) -> str:
    """How it is called, whatever the width of the terminal is."""
    # argparse asks the terminal only where the formatter is given no width
    command.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=WIDTH)
    return command.format_usage().removeprefix("usage: ").replace("\n       ", "\n")


def parts(command: argparse.ArgumentParser) -> Iterator[nodes.Node]:
    """What a section says below its title."""
    if command.description:
        yield from (nodes.paragraph("", part) for part in command.description.split("\n\n"))
    yield literal(usage(command))
    for group in command._action_groups:
        actions = [
            action
            for action in group._group_actions
            if action.help != argparse.SUPPRESS
            and not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction))
        ]
        if actions:
            if group.title not in ("options", "positional arguments"):
                yield nodes.paragraph("", "", nodes.strong("", str(group.title)))
            yield table((), rows(actions, command), "options", widths=(40, 60))
    if epilog := epilog_of(command):
        yield literal(epilog)


class CommandLine(SphinxDirective):
    """``.. command-line::``: a section a verb."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        """The sections, verbs of a verb below it."""
        return [self.section(verb, command) for verb, command in verbs_of(parser()).items()]

    def section(self, name: str, command: argparse.ArgumentParser) -> nodes.section:
        """The section of a verb."""
        inner = [self.section(*item) for item in verbs_of(command).items()]
        return section(self, command.prog, *parts(command), *inner)


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the directive."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
