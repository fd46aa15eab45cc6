"""Runs the shell steps of our CI files as the services would: expressions filled in, the script handed to bash."""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}")

# The first of names that is not empty, as `a || b` says: all that our files use.
Contexts = Mapping[str, str]


def load(name: str) -> dict[str, Any]:
    """A YAML file of ours; `on` is a truth value to YAML 1.1, and a word to the services."""
    import yaml

    data = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return {("on" if key is True else key): value for key, value in data.items()}


def filled(text: str, contexts: Contexts) -> str:
    """The text with its expressions replaced; an unknown name is a mistake of ours, not an empty text."""

    def value(match: re.Match[str]) -> str:
        names = [name.strip() for name in match[1].split("||")]
        return next((contexts[name] for name in names if contexts[name]), "")

    return EXPRESSION.sub(value, text)


@dataclass
class Job:
    """A job on a machine of its own: where it works, what it sees, and what its steps leave behind."""

    folder: Path
    contexts: dict[str, str]
    scratch: Path
    path: str = field(default_factory=lambda: os.environ["PATH"])
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        return _text(self.scratch / "summary.md")

    def run(self, steps: list[dict[str, Any]]) -> "list[subprocess.CompletedProcess[str]]":
        """The result of each shell step; as in the services, none runs after one that failed."""
        done = []
        for step in (step for step in steps if "run" in step):
            done.append(self._run(step))
            if done[-1].returncode:
                break
        return done

    def _run(self, step: Mapping[str, Any]) -> "subprocess.CompletedProcess[str]":
        output = self.scratch / "output"
        output.write_text("")
        environment = {name: filled(text, self.contexts) for name, text in step.get("env", {}).items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.folder,
            env={
                "PATH": self.path,
                "HOME": str(self.scratch),
                "CI": "true",
                "GITHUB_OUTPUT": str(output),
                "GITHUB_STEP_SUMMARY": str(self.scratch / "summary.md"),
                "OMP_NUM_THREADS": "1",
                **self.extra,
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        outputs = dict(line.split("=", 1) for line in output.read_text().splitlines())
        self.contexts |= {f"steps.{step.get('id', '')}.outputs.{name}": text for name, text in outputs.items()}
        return done


def scripts(data: object) -> Iterator[str]:
    """Every text of the file that a shell reads."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key in {"run", "script", "before_script"}:
                yield from [value] if isinstance(value, str) else value
            else:
                yield from scripts(value)
    elif isinstance(data, list):
        for value in data:
            yield from scripts(value)


def used(data: object) -> Iterator[str]:
    """Every action that the file uses."""
    if isinstance(data, dict):
        yield from ([data["uses"]] if "uses" in data else [])
        for value in data.values():
            yield from used(value)
    elif isinstance(data, list):
        for value in data:
            yield from used(value)


def executable(path: Path, text: str) -> Path:
    """A script that stands in for a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def git(folder: Path, *arguments: str) -> str:
    """The output of git, run without the settings of this machine's user."""
    settings = ["-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        ["git", *settings, *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
