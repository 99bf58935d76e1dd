"""The README's promises, executed."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from pathlib import Path

import pytest

import apart
from worlds.scenarios import written

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def test_python_of_the_readme_runs(capsys):
    """The blocks one after another, as a reader types them."""
    names: dict[str, object] = {}
    source = "\n".join(blocks("python"))
    exec(compile(source, "README.md", "exec"), names)
    report, printed = names["report"], capsys.readouterr().out
    assert f"{report.step_ps / 1e9:.2f} ms" in source
    assert f"Step time {report.step_ps / 1e9:.4g} ms" in printed
    assert printed.endswith("0.006006 True 0\nTrue\n")


def test_json_of_the_readme_is_json():
    assert all(json.loads(source) for source in blocks("json"))


def test_commands_of_the_readme_exist(capsys):
    from simdev.commands import main

    for verb in re.findall(r"^    simdev (\w+)", README.read_text(), re.MULTILINE):
        with pytest.raises(SystemExit) as stop:
            main([verb, "--help"])
        assert stop.value.code == 0
    assert "usage" in capsys.readouterr().out


def test_make_targets_of_the_readme_exist():
    makefile = (README.parent / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README.read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_figures_of_the_readme_are_those_of_the_shipped_scenario():
    import simdev

    report = simdev.run(
        simdev.load_scenario(README.parent / "scenarios" / "gpt2-medium-4x-h100-pipeline.json")
    )
    assert f"({report.step_ps:,} ps, engine simpy)" in README.read_text()


def test_the_question_of_the_guide_has_its_answer(tmp_path, monkeypatch, capsys):
    from simdev.commands import main

    monkeypatch.chdir(tmp_path)
    guide = (README.parent / "docs" / "tutorials" / "guide.md").read_text()
    question = re.findall(r"```json\n(.*?)```", guide, re.DOTALL)[0]
    Path("first.json").write_text(question)
    (command,) = re.findall(r"^    simdev (simulate .*)$", guide, re.MULTILINE)
    assert main(command.split()) == 0
    (headline,) = re.findall(r"`(Step time .*?)`", guide)
    assert headline in capsys.readouterr().out

    Path("small.json").write_text(question.replace("8 GiB", "900 MB", 1))
    assert main(["simulate", "small.json"]) == 1

    run = json.loads(gzip.decompress(Path("run.json.gz").read_bytes()))
    last = run["tasks"]["name"].index("update")
    for column in ("start_ps", "finish_ps"):
        run["spans"][column][last] += 5
    written(Path("broken.json"), run)
    capsys.readouterr()
    assert main(["check", "broken.json"]) == 3
    assert re.findall(r"^    (waiting: .*)$", guide, re.MULTILINE)[0] in capsys.readouterr().out


@pytest.mark.slow
def test_the_comparison_of_the_page_comes_out(monkeypatch, capsys):
    """All but the CPU seconds, which are of the machine."""
    from simdev.commands import main

    monkeypatch.chdir(README.parent)
    page = (README.parent / "docs" / "how-to" / "comparing.md").read_text()
    (command, printed), *_ = re.findall(
        r"^    simdev (search \S+ --prepare.*?\n)\n.*?```text\n(.*?)```",
        page,
        re.DOTALL | re.MULTILINE,
    )
    assert main(command.replace("\\\n", " ").split()) == 0

    def rows(text: str) -> list[list[str]]:
        masked = re.sub(r"(?<!x )\b\d+\.\d\d\b", "-", text)
        return [line.split() for line in masked.splitlines()]

    assert rows(capsys.readouterr().out) == rows(printed)


@pytest.mark.slow
def test_the_search_over_plans_ends_where_its_page_says(tmp_path):
    """Optuna over plans of a large model, which takes some seconds."""
    page = (README.parent / "docs" / "how-to" / "your-own-search.md").read_text()
    (source,) = re.findall(r"```python optuna\n(.*?)```", page, re.DOTALL)
    (printed,) = re.findall(r"^prints `(.*?)`", page, re.MULTILINE)
    head, _, last = source.rstrip().rpartition("\n")
    assert last.startswith("print(")
    said = f"import io\nout = io.StringIO()\n{last[:-1]}, file=out)\n"
    wrong = apart.python(f"{head}\n{said}assert out.getvalue() == {printed + chr(10)!r}", tmp_path)
    assert not wrong, wrong


PAGES = sorted(README.parent.glob("docs/**/*.md"))


def python_of(page: Path) -> str:
    """Its blocks one after another; what measures with PyTorch is measured elsewhere."""
    sources = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    return "\n".join(source for source in sources if "torch" not in source)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """The folder of a reader who has a scenario.json, and the trace.json that it made."""
    from simdev.commands import main

    folder = tmp_path_factory.mktemp("reader")
    op = {"inputs": ["a"], "outputs": [{"bytes": "2 MB"}]}
    ops = [{"name": "a", "time": "1 ms", "outputs": [{"bytes": "4 MB"}]}]
    ops += [{"name": f"b{k}", "time": f"{k + 1} ms", **op} for k in range(6)]
    links = {"all_to_all": {"bandwidth": "5 GB/s", "latency": "10 us"}}
    devices = [{"name": f"gpu:{k}", "memory": "8 GB", "gap": "5 us"} for k in range(2)]
    placement = {f"b{k}": f"gpu:{k % 2}" for k in range(6)} | {"a": "gpu:0"}
    scenario = {
        "version": 1,
        "graph": {"ops": ops},
        "cluster": {"queues": "device", "devices": devices, "links": links},
        "strategy": {"placement": placement},
    }
    written(folder / "scenario.json", scenario)
    assert (
        main(["simulate", str(folder / "scenario.json"), "--trace", str(folder / "trace.json")])
        == 0
    )
    return folder


@pytest.mark.parametrize(
    "page", [page for page in PAGES if python_of(page)], ids=lambda page: page.stem
)
def test_python_of_the_documents_runs(page, reader):
    """In a process of its own: what a page registers is nobody else's."""
    wrong = apart.python(python_of(page), reader)
    assert not wrong, wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_json_of_the_documents_is_json(page):
    for source in re.findall(r"```json\n(.*?)```", page.read_text(), re.DOTALL):
        json.loads(source)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_the_documents_exist(page, capsys):
    """Each verb, and each of its options that a page shows."""
    from simdev.commands import main

    text = page.read_text().replace("\\\n", " ")
    for verb, rest in re.findall(r"^(?:    |\$ )simdev (\w+)(.*)$", text, re.MULTILINE):
        words = [verb, "doctor"] if verb == "profile" and rest.startswith(" doctor") else [verb]
        with pytest.raises(SystemExit) as stop:
            main([*words, "--help"])
        assert stop.value.code == 0
        known = capsys.readouterr().out
        for option in re.findall(r"(?<=\s)--[a-z][a-z-]*", rest.split("#")[0]):
            assert option in known, (verb, option)


def told_in(page: Path) -> list[tuple[str, list[str]]]:
    """The commands of its blocks of a console, each with the lines that it prints."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
    commands = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.M)[1:]]
    return [(lines[0], lines[1:]) for lines in (part.splitlines() for part in commands)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["systems", "papers", "trace"])
def test_a_tutorial_prints_what_it_says(name, tmp_path, monkeypatch, capsys):
    """Every line that stands there; what took how long is of the machine."""
    from simdev.commands import main

    monkeypatch.chdir(tmp_path)
    for command, lines in told_in(README.parent / "docs" / "tutorials" / f"{name}.md"):
        assert main(shlex.split(command)[1:]) == 0, command
        printed = {line.rstrip() for text in capsys.readouterr() for line in text.splitlines()}
        for line in lines:
            if line and line != "..." and "plans/s" not in line:
                assert line.rstrip() in printed, (command, line)
