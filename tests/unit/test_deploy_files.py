"""The files that people install with: pins, images, scripts, the pages as a site."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
LINUX = {"sys_platform": "linux", "platform_machine": "x86_64", "python_version": "3.11"}


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(name):
    """Version and number of hashes of every pinned package."""
    text = (DEPLOY / name).read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        package, version = re.match(r"([a-z0-9_.-]+)==(\S+)", line).groups()
        found[package] = (version, line.count("--hash=sha256:"))
    return found


def wanted():
    """What the image needs: dependencies, and those of the extra for media."""
    extras = project()["optional-dependencies"]
    names = [*project()["dependencies"], *extras["av"], *extras["heic"], *extras["pdf"]]
    requirements = map(Requirement, names)
    return [r for r in requirements if r.marker is None or r.marker.evaluate(LINUX)]


@pytest.mark.parametrize("requirement", wanted(), ids=str)
def test_the_pins_satisfy_the_project(requirement):
    version, n_hashes = pins("requirements.txt")[requirement.name.lower().replace("_", "-")]
    assert requirement.specifier.contains(version)
    assert n_hashes > 0


def test_everything_is_pinned_with_hashes():
    for name in ("requirements.txt", "requirements-build.txt"):
        assert all(n_hashes for _, n_hashes in pins(name).values())
    assert "hatchling" in pins("requirements-build.txt")


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_an_image_runs_without_rights_and_tells_its_health(name):
    text = (DEPLOY / name).read_text()
    assert "USER 10001:10001" in text
    assert "HEALTHCHECK" in text
    installs = re.findall(r"pip install (?:[^\n\\]|\\\n)*", text)
    named = [line for line in installs if "-r " in line]
    assert named
    assert all("--require-hashes" in line and "--only-binary :all:" in line for line in named)
    assert all("-r " in line or "--no-deps" in line for line in installs)
    for source in re.findall(r"^COPY ((?:[^-\n]\S* )+)", text, re.MULTILINE):
        assert all((ROOT / path).exists() for path in source.split())


def test_containers_are_closed_in():
    (service,) = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    (gpu,) = yaml.safe_load((DEPLOY / "compose.cuda.yaml").read_text())["services"].values()
    assert gpu["build"]["dockerfile"] == "deploy/Dockerfile.cuda"


@pytest.mark.parametrize("service", ["compose.yaml", "compose.cuda.yaml"])
def test_commands_of_containers_exist(service):
    from phi4mm.cli.main import build_parser

    (settings,) = yaml.safe_load((DEPLOY / service).read_text())["services"].values()
    build_parser().parse_args(settings["command"])


SCRIPTS = ["deploy/install.sh", "scripts/newcomer.sh"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_sound(script):
    subprocess.run(["sh", "-n", ROOT / script], check=True)
    if (shellcheck := shutil.which("shellcheck")) is not None:
        done = subprocess.run(
            [shellcheck, ROOT / script], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout


def test_the_installer_says_what_it_would_do(tmp_path):
    done = subprocess.run(
        ["sh", ROOT / "deploy/install.sh", "--dry-run", "--extras", "av,pdf"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"pip install --quiet --upgrade {ROOT}[av,pdf]" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_installer_refuses_what_it_does_not_know():
    done = subprocess.run(
        ["sh", ROOT / "deploy/install.sh", "--fast"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "unknown argument --fast" in done.stderr


def test_the_site_has_every_page():
    def pages(entry):
        if isinstance(entry, str):
            return [entry]
        values = entry.values() if isinstance(entry, dict) else entry
        return [page for value in values for page in pages(value)]

    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert sorted(pages(config["nav"])) == sorted(p.name for p in (ROOT / "docs").glob("*.md"))


def test_the_site_asks_for_nothing_from_elsewhere():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert config["theme"]["name"] == "readthedocs"  # has its fonts with it
    assert config["theme"]["highlightjs"] is False
    assert not {"extra_css", "extra_javascript"} & config.keys()


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_no_page_of_the_site_links_to_what_is_not_in_it(page):
    """`mkdocs build --strict` refuses such a page."""
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / "docs" / link).resolve().exists()] == []
    assert [link for link in links if link.startswith("..")] == []
