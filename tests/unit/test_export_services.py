"""Units for systemd and configs for Ray Serve."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from measured import largest_file

from phi4mm import InputError
from phi4mm.cli.main import build_parser, main
from phi4mm.cli.server_options import server_settings
from phi4mm.deploy.settings import from_values
from phi4mm.export.ray import Scale
from phi4mm.export.systemd import Service, unit_text
from phi4mm.export.yaml_text import yaml_text


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    monkeypatch.delenv("PHI4MM_API_KEY", raising=False)
    monkeypatch.delenv("PHI4MM_MODEL", raising=False)


def test_yaml_says_what_it_was_given():
    value = {
        "text": 'a: "b" # c',
        "empty": {},
        "none": None,
        "list": [1, 2.5, True, "x"],
        "deep": {"items": [{"a": 1, "b": {"c": [1]}}, {"a": "ü"}], "no": []},
        "rows": [[1, 2], [3]],
    }
    assert yaml.safe_load(yaml_text(value)) == value


# ---- systemd


def service(**changes):
    values = {
        "name": "phi4mm.service",
        "command": ["/opt/phi4mm/bin/python", "-m", "phi4mm", "serve"],
        "paths": (Path("/opt/phi4mm/bin/python"), Path("/srv/model")),
        "cache": None,
        "user": None,
        "key_file": None,
        "uses_accelerator": False,
    }
    return Service(**values | changes)


def settings_of(text):
    """(key, value) of a unit's lines."""
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


def unit_for(tmp_path, *flags):
    """What the command writes."""
    path = tmp_path / "phi4mm.service"
    assert main(["export", "systemd", "-o", str(path), "--run-as", "phi", *flags]) == 0
    return path.read_text()


def test_the_service_has_an_account_of_its_own_and_no_rights():
    found = settings_of(unit_text(service()))
    assert found["DynamicUser"] == "yes"
    assert found["ProtectHome"] == "yes"
    assert found["PrivateDevices"] == "yes"
    assert found["CapabilityBoundingSet"] == ""
    assert found["KillMode"] == "mixed"


def test_an_accelerator_can_be_reached():
    found = settings_of(unit_text(service(uses_accelerator=True)))
    assert found["PrivateDevices"] == "no"
    assert found["ProcSubset"] == "all"


def test_what_lies_in_a_home_folder_is_refused():
    with pytest.raises(InputError, match=r"/home/ann/model: lies in a home folder.*--run-as"):
        unit_text(service(paths=(Path("/home/ann/model"),)))
    found = settings_of(unit_text(service(paths=(Path("/home/ann/model"),), user="ann")))
    assert (found["User"], found["ProtectHome"]) == ("ann", "read-only")


@pytest.mark.parametrize("flag", ["--mmproj", "--vision-lora", "--speech-lora"])
def test_every_part_in_a_home_folder_is_refused(flag, capsys, monkeypatch, sample_path, tmp_path):
    monkeypatch.setattr("sys.executable", "/opt/phi4mm/bin/python")
    bundle = shutil.copytree(sample_path, tmp_path / "bundle")  # a checkout may be in a home folder
    assert main(["export", "systemd", "-m", str(bundle), flag, "/home/me/part.gguf"]) == 2
    assert "/home/me/part.gguf: lies in a home folder" in capsys.readouterr().err


def test_a_cache_can_be_written_to(tmp_path):
    assert "ReadWritePaths" not in unit_text(service(cache=Path("/var/lib/phi4mm/encoders")))
    with pytest.raises(InputError, match="can write to /var/lib/phi4mm only"):
        unit_text(service(cache=tmp_path))
    own = settings_of(unit_text(service(cache=tmp_path, user="phi")))
    assert own["ReadWritePaths"] == str(tmp_path)


@pytest.mark.parametrize("target", ["systemd", "ray"])
def test_a_full_disk_leaves_the_file_that_was_there(target, tmp_path, sample_path, capsys):
    path = tmp_path / ("phi4mm.service" if target == "systemd" else "ray.yaml")
    flags = ["--run-as", "phi"] if target == "systemd" else []
    path.write_text("before")
    with largest_file(100):
        assert main(["export", target, "-m", str(sample_path), "-o", str(path), *flags]) == 2
    assert "cannot be written: File too large" in capsys.readouterr().err
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_keys_are_handed_over_by_systemd():
    text = unit_text(service(key_file=Path("/etc/phi4mm/50%")))
    assert "LoadCredential=api-keys:/etc/phi4mm/50%%" in text
    assert settings_of(text)["ExecStart"].endswith("--api-key-file %d/api-keys")


def test_the_flags_mean_the_same_to_the_server(tmp_path, sample_path):
    flags = [
        "-m", str(sample_path), "-c", "2048", "-np", "3", "-ctk", "q8_0", "--max-body", "5",
        "--cors-origin", "http://a", "--cors-origin", "http://b$%", "--allow-media-url", "x", "y",
        "--served-model-name", 'a "name"', "--timeout", "9.5",
    ]  # fmt: skip
    line = settings_of(unit_for(tmp_path, *flags))["ExecStart"]
    words = shlex.split(line.replace("%%", "%").replace("$$", "$"))
    assert words[:4] == [sys.executable, "-m", "phi4mm", "serve"]
    parser = build_parser()
    written = server_settings(parser.parse_args(words[3:]))
    assert written == server_settings(parser.parse_args(["serve", *flags]))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--api-key", "secret"], "use --api-key-file"),
        (["-o", "unit.txt"], "ends in .service"),
        (["-o", "my unit.service"], "letters, digits"),
        (["--run-as", "phi\nExecStartPre=x"], "line breaks"),
        (["--run-as", "phi", "--encoder-cache", "absent"], "make it first"),
        (["-np", "0"], "--parallel is 0"),
        (["--media-path", "absent"], "no such folder"),
    ],
)
def test_flags_that_cannot_be_are_said_at_once(flags, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export", "systemd", *flags]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path, sample_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    unit_for(tmp_path, "-m", str(sample_path), "--api-key-file", str(keys), "-np", "2")
    path = str(tmp_path / "phi4mm.service")
    done = subprocess.run(
        ["systemd-analyze", "verify", path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    score = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=25", path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert score.returncode == 0, score.stdout[-300:]  # exposure of at most 2.5 of 10


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_a_unit_with_a_cache_and_odd_names(tmp_path, sample_path):
    cache, bundle = tmp_path / 'my "cache" 100%', tmp_path / "my $models"
    cache.mkdir()
    bundle.symlink_to(sample_path)
    unit_for(tmp_path, "-m", str(bundle), "--encoder-cache", str(cache))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "phi4mm.service")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# ---- Ray


def config_for(tmp_path, *flags):
    path = tmp_path / "ray.yaml"
    assert main(["export", "ray", "-o", str(path), *map(str, flags)]) == 0
    return yaml.safe_load(path.read_text())


def test_a_config_names_the_deployment_and_its_settings(tmp_path, sample_path):
    flags = ["-m", sample_path, "-np", "3", "-c", "2048", "-ngl", "9", "--device", "CUDA0"]
    config = config_for(tmp_path, *flags, "--max-replicas", "4", "--cpus", "8", "--gpus", "1")
    (application,) = config["applications"]
    assert application["import_path"] == "phi4mm.deploy.ray:app"
    settings = from_values(application["args"])
    args = build_parser().parse_args(["serve", *map(str, flags)])
    assert settings.server == server_settings(args)
    front, model = application["deployments"]
    assert (front["name"], model["name"]) == ("Front", "Model")
    assert model["ray_actor_options"] == {"num_cpus": 8, "num_gpus": 1}
    assert model["autoscaling_config"] == {
        "min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 3
    }  # fmt: skip


def test_paths_mean_the_same_wherever_a_replica_starts(tmp_path, sample_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bundle").symlink_to(sample_path)
    (tmp_path / "media").mkdir()
    (tmp_path / "keys").write_text("secret\n")
    flags = ("--media-path", "media", "--encoder-cache", "cache", "--api-key-file", "keys")
    config = config_for(tmp_path, "-m", "bundle", *flags)
    words = re.findall(r"'([^']*)'", str(config))
    for name in ("bundle", "media", "cache", "keys"):
        assert str(tmp_path / name) in words


def test_a_fixed_number_of_replicas(tmp_path, sample_path):
    flags = ("-m", sample_path, "--min-replicas", "2", "--max-replicas", "2")
    _, model = config_for(tmp_path, *flags)["applications"][0]["deployments"]
    assert model["num_replicas"] == 2
    assert "autoscaling_config" not in model


def test_keys_stay_in_their_file(tmp_path, sample_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    config = config_for(tmp_path, "-m", sample_path, "--api-key-file", keys)
    assert "secret" not in str(config)
    assert from_values(config["applications"][0]["args"]).with_keys().api_keys == ("secret",)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--min-replicas", "3", "--max-replicas", "2"], "--max-replicas is 2"),
        (["--max-replicas", "0"], "--max-replicas is 0"),
        (["--cpus", "0"], "--cpus is 0"),
        (["--fronts", "0"], "--fronts is 0"),
        (["--api-key", "x"], "use --api-key-file"),
    ],
)
def test_scales_that_cannot_be_are_refused(flags, message, capsys):
    assert main(["export", "ray", *flags]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("target", ["ray", "systemd"])
def test_keys_of_the_environment_are_not_dropped(target, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PHI4MM_API_KEY", "secret")
    monkeypatch.chdir(tmp_path)
    assert main(["export", target]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "PHI4MM_API_KEY: keys do not go into this file" in line
    assert "secret" not in line


def test_a_scale_may_go_down_to_nothing():
    assert Scale(min_replicas=0).max_replicas == 1


@pytest.fixture
def sample_path():
    from phi4mm.cli.options import sample_bundle

    return sample_bundle()
